"""Jobs over two hosts whose connections pass through a relay, which changes their bytes without the job's key."""

import os
import re
import subprocess
import sys

import pytest
from launch import SUPPORT
from limits import allowed

KEY = {"FARANDOLE_JOB_KEY": "0123456789abcdef"}

# Starts the relay on host-a, and the ranks on the hosts of PLACES. Rank 1 calls rank 0.
RANKS = """
import os, subprocess, sys
pids = dict(pair.split("=") for pair in os.environ["HOSTS_OF_THIS_TEST"].split(","))
relay = subprocess.Popen([sys.executable, os.environ["RELAY"], os.environ["EDIT"]], stdout=subprocess.PIPE)
assert relay.stdout.readline() == b"ready\\n"
ranks = []
places = os.environ["PLACES"].split()
for rank, host in enumerate(places):
    variables = {**os.environ, "FARANDOLE_RANK": str(rank), "FARANDOLE_SIZE": str(len(places)),
                 "FARANDOLE_RENDEZVOUS": "tcp://198.18.77.1:29500"}
    ranks.append(subprocess.Popen(["nsenter", "--target", pids[host], "--net", "--uts", sys.executable, "-c",
                                   os.environ["PROGRAM"]], env=variables))
codes = [rank.wait() for rank in ranks]
relay.kill()
sys.exit(max(codes))
"""

# Sums of several slices each, so that bytes follow those that are missing, and an object. Each prints its outcome.
HEAD = """
import os, sys
import farandole
from farandole import core, objects
import numpy as np

def attempt(work):
    try:
        print(f"rank {os.environ['FARANDOLE_RANK']}: {work()}", flush=True)
    except farandole.Error as error:
        print(f"rank {os.environ['FARANDOLE_RANK']}: {type(error).__name__}: {error}", flush=True)
"""
SUMS = (
    HEAD
    + """
def work():
    farandole.init()
    wrong = 0
    comm = farandole.Communicator()
    for number in range(40):
        summed = comm.allreduce(np.full(100_000, number, np.int32), op="sum")
        wrong += not (summed == 2 * number).all()
    return f"{wrong} of 40 wrong"
attempt(work)
"""
)
OBJECT = (
    HEAD
    + """
def work():
    farandole.init()
    return objects.broadcast_object("harmless" if farandole.rank() == 0 else None, 0, "words", core.world_group())
attempt(work)
"""
)
NAMED = (
    HEAD
    + """
def work():
    farandole.init()
    return [farandole.allreduce(np.ones(4, np.float32), name=f"t{n}", op="sum").sum() for n in range(20)][-1]
attempt(work)
"""
)
# The names are new, so that all ranks exchange messages of the agreement.
MANY_NAMED = NAMED.replace("range(20)", "range(3000)")
MISSED = (
    r"what rank \d \(host-[ab]\) has sent to rank \d \(host-[ab]\) has not arrived for 4 s \(twice "
    r"FARANDOLE_LOST_AFTER_S\), although the connection is sound: something between the two hosts holds it back"
)
CHANGED = r"from rank \d \(host-[ab]\) to rank \d \(host-[ab]\) is not what was sent"


def run(program, edit, places="host-a host-b", **environment):
    ended = subprocess.run(
        [sys.executable, os.path.join(SUPPORT, "two_hosts.py"), sys.executable, "-c", RANKS],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "EDIT": edit,
             "PLACES": places, "PROGRAM": program, "RELAY": os.path.join(SUPPORT, "relay.py"), "OMP_NUM_THREADS": "1",
             "FARANDOLE_SLICE_BYTES": "16K", **environment},
        capture_output=True, text=True, timeout=allowed(120))  # fmt: skip
    ranks = range(len(places.split()))
    return [re.findall(rf"rank {rank}: (.*)", ended.stdout) for rank in ranks], ended.stdout + ended.stderr


def all_are_told(outcomes):
    return all(len(one) == 1 and re.match(rf"AuthenticationError: .*{CHANGED}", one[0]) for one in outcomes)


@pytest.mark.parametrize("security", ["auto", "encrypt"])
def test_a_relay_that_changes_nothing_is_no_obstacle(security):
    outcomes, output = run(SUMS, "nothing", FARANDOLE_SECURITY=security, **KEY)
    assert outcomes == [["0 of 40 wrong"]] * 2, output


# What the protection is measured against: without it the change is not seen.
def test_without_protection_a_sum_is_wrong():
    outcomes, output = run(SUMS, "flip:1000000", FARANDOLE_SECURITY="none", **KEY)
    assert any(re.match("[1-9].* of 40 wrong", one[0]) for one in outcomes), output


@pytest.mark.parametrize("edit", ["flip:1000000", "repeat:1000000", "drop:1000000"])
@pytest.mark.parametrize("security", ["auto", "encrypt"])
def test_every_rank_is_told_that_data_was_changed(security, edit):
    outcomes, output = run(SUMS, edit, FARANDOLE_SECURITY=security, **KEY)
    assert all_are_told(outcomes), output


# Neither kernel sees that anything is missing, and the ranks answer the coordinator.
@pytest.mark.parametrize("program, byte", [(SUMS, 1_000_000), (MANY_NAMED, 300_000)], ids=["ordered", "named"])
@pytest.mark.parametrize("security", ["none", "auto"])
def test_data_that_a_relay_withholds_is_missed(security, program, byte):
    outcomes, output = run(program, f"withhold:{byte}", FARANDOLE_SECURITY=security, FARANDOLE_LOST_AFTER_S="2", **KEY)
    for one in outcomes:
        assert len(one) == 1 and re.search(MISSED, one[0]), output


@pytest.mark.parametrize("security", ["none", "auto"])
def test_an_exchanged_object_is_not_unpickled(security):
    outcomes, output = run(OBJECT, "exchange:harmless:harmful!", FARANDOLE_SECURITY=security, **KEY)
    assert "harmful!" not in output
    assert outcomes[1] and re.match(rf"AuthenticationError: .*{CHANGED}", outcomes[1][0]), output


def test_every_rank_is_told_that_an_agreement_message_was_changed():
    outcomes, output = run(NAMED, "agreement", FARANDOLE_SECURITY="none", **KEY)
    assert all_are_told(outcomes), output


# ---- A job without a secret -----------------------------------------------------------------------------------------


def test_without_a_secret_no_object_is_unpickled():
    outcomes, output = run(OBJECT, "nothing")
    for one in outcomes:
        assert re.match("AuthenticationError: this job has no secret: .*FARANDOLE_JOB_KEY_FILE", one[0]), output
    assert output.count("this job runs on several hosts without a secret") == 1, output


def test_without_a_secret_objects_can_be_allowed():
    outcomes, output = run(OBJECT, "nothing", FARANDOLE_TRUST_DERIVED_KEY="1")
    assert outcomes == [["harmless"]] * 2, output


def test_a_key_file_is_a_secret(tmp_path):
    path = tmp_path / "key"
    path.write_text("fedcba9876543210\n")
    outcomes, output = run(OBJECT, "nothing", FARANDOLE_JOB_KEY_FILE=str(path), FARANDOLE_LOG_LEVEL="info")
    assert outcomes == [["harmless"]] * 2, output
    assert "without a secret" not in output
    assert "data over TCP: integrity (FARANDOLE_SECURITY=auto)" in output, output
    assert "data over NCCL, MPI, EFA or libfabric is not protected" in output, output


# ---- A goodbye that arrives late -------------------------------------------------------------------------------------

# Rank 1 ends. The others begin an operation without it, and wait for it: the coordinator pings rank 1 meanwhile.
GOODBYE = (
    HEAD
    + """
import time
def work():
    if os.environ["FARANDOLE_RANK"] == "1" and "PATIENCE" in os.environ:
        os.environ["FARANDOLE_LOST_AFTER_S"] = os.environ["PATIENCE"]
    farandole.init()
    comm = farandole.Communicator()
    comm.allreduce(np.ones(4, np.float32), op="sum")
    if farandole.rank() == 1:
        open(os.environ["HOLD"], "w").close()
        begun = time.monotonic()
        farandole.shutdown()
        return f"ended after {time.monotonic() - begun:.1f} s"
    return comm.allreduce(np.ones(4, np.float32), op="sum")
attempt(work)
"""
)


def goodbye(tmp_path, held_s, **environment):
    file = tmp_path / "hold"
    return run(GOODBYE, f"hold:{held_s}:{file}", "host-a host-b host-a", HOLD=str(file), **KEY, **environment)


def test_a_rank_whose_goodbye_is_late_is_not_called_lost(tmp_path):
    outcomes, output = goodbye(tmp_path, 4)
    for rank in (0, 2):
        assert re.match(r"ShutDownError: .*rank 1 \(host-b\) has shut down", outcomes[rank][0]), output
    assert "was lost" not in output, output
    assert 3.5 < float(re.match(r"ended after (.*) s", outcomes[1][0])[1]) < 10, output


def test_a_rank_whose_goodbye_does_not_arrive_ends_after_the_limit(tmp_path):
    # The limit of rank 1 is shorter than that of the coordinator, which would close the connection with rank 1.
    outcomes, output = goodbye(tmp_path, 30, FARANDOLE_LOST_AFTER_S="3", PATIENCE="1.5")
    for rank in (0, 2):
        assert re.match(r"PeerLostError: .*rank 1 .* was lost", outcomes[rank][0]), output
    assert "has not confirmed within 1.5 s that this rank has ended" in output, output
    assert 1.4 < float(re.match(r"ended after (.*) s", outcomes[1][0])[1]) < 20, output
