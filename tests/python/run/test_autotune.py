"""Tuning while a job runs: processes over TCP, the log, the table, and Horovod's variables."""

import csv
import os
import re
import subprocess
import sys

from launch import FARANDOLE
from limits import allowed

STEPS = """
import numpy
import farandole

farandole.init()
rank, size = farandole.rank(), farandole.size()
comm = farandole.Communicator()
tensors = [numpy.empty(256, numpy.float32) for _ in range(32)]
step = 0
settled = False
while not settled and step < 15000:  # without a message among so many steps, nothing is tried any more
    before = farandole.metrics()["control_messages"]
    for _ in range(250):
        step += 1
        handles = []
        for i, tensor in enumerate(tensors):
            tensor.fill(step % 8 + rank + i % 5)
            handles.append(farandole.allreduce_async(tensor, "sum", name=f"gradient {i}", out=tensor))
        for i, handle in enumerate(handles):
            assert (handle.wait() == sum(step % 8 + one + i % 5 for one in range(size))).all()
    still = rank == 0 and farandole.metrics()["control_messages"] == before
    settled = comm.allreduce(numpy.array([int(still)]))[0] > 0
print("settled" if settled else "still searching")
"""
FINAL = re.compile(r"\[(\d)\].*the order has buckets of up to (\d+) bytes, and tensors above (\d+) bytes run alone")


def run(ranks, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    environment |= {"FARANDOLE_TRANSPORT": "tcp", "FARANDOLE_LOG_LEVEL": "info", **variables}
    command = [FARANDOLE, "run", "--standalone", "-np", str(ranks), "--", sys.executable, "-c", STEPS]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=allowed(240))


# Whether another cut is faster depends on the load of the machine; the tests of StepTuner and bench/ answer that.
def test_all_ranks_have_the_cut_that_was_found_and_the_next_job_begins_with_it(tmp_path):
    table, log = tmp_path / "tuning.txt", tmp_path / "samples.csv"
    table.write_text("farandole tuning 1\n")
    variables = {
        "FARANDOLE_TUNING": str(table),
        "HOROVOD_FUSION_THRESHOLD": "1024",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.8",
    }
    job = run(3, **variables)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("settled") == 3, job.stdout
    finals = FINAL.findall(job.stderr)
    assert {rank for rank, _, _ in finals} == {"0", "1", "2"}, job.stderr
    assert len({(bucket, alone) for _, bucket, alone in finals}) == 1, "the ranks differ"
    _, bucket, alone = finals[0]
    gains = re.findall("autotune: .* of its former time", job.stderr)
    stays = re.findall("autotune: .* stays; none of", job.stderr)
    assert len(gains + stays) == 1, job.stderr
    assert "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.8 does nothing here" in job.stderr

    rows = list(csv.DictReader(log.open()))
    assert any(row["outcome"] == "kept" for row in rows) == bool(gains)
    assert all(float(row["step_us"]) > 0 for row in rows)
    assert float(rows[-1]["lost_s"]) <= 0.02 * float(rows[-1]["elapsed_s"])
    assert (rows[-1]["kept_bucket_bytes"], rows[-1]["kept_alone_bytes"]) == (bucket, alone)
    if stays:
        assert bucket == "1024" and table.read_text() == "farandole tuning 1\n"
        return
    assert f"up_to={bucket} alone_above={alone}" in table.read_text()
    again = run(3, FARANDOLE_TUNING=str(table))
    assert again.returncode == 0, again.stderr
    assert {tuple(found[1:]) for found in FINAL.findall(again.stderr)} == {(bucket, alone)}, again.stderr


def test_a_log_that_cannot_be_written_is_reported_and_the_job_runs():
    job = run(2, FARANDOLE_AUTOTUNE="1", FARANDOLE_AUTOTUNE_LOG="/nowhere/samples.csv", FARANDOLE_TUNING="off")
    assert job.returncode == 0, job.stderr
    assert "autotune: the log '/nowhere/samples.csv' cannot be written: No such file or directory" in job.stderr
