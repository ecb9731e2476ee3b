"""farandole.jax in whole jobs: examples, elastic jobs, lost ranks, other programs, several worlds."""

import json
import os
import subprocess
import sys

import farandole.jax
import jax
from launch import FARANDOLE, ROOT, free_port
from limits import allowed

HERE = os.path.dirname(os.path.abspath(__file__))


class Job:
    """A job of jax_tasks.py: what it printed, its errors and its exit code."""

    def __init__(self, flags, *arguments, **variables):
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))
        }
        inherited.update(OMP_NUM_THREADS="1", **variables)
        command = [FARANDOLE, "run", *flags.split(), "--", sys.executable, *map(str, arguments)]
        done = subprocess.run(command, env=inherited, capture_output=True, text=True, timeout=allowed(120))
        self.code, self.output, self.errors = done.returncode, done.stdout, done.stderr
        self.printed = [json.loads(line.split("SAYS ")[1]) for line in done.stdout.splitlines() if "SAYS " in line]

    def all_with(self, key):
        return [one for one in self.printed if key in one]

    @property
    def report(self):
        return f"exit code {self.code}\n{self.output}\n{self.errors}"


def task(flags, name, *arguments, **variables):
    return Job(flags, os.path.join(HERE, "jax_tasks.py"), name, *arguments, **variables)


def test_a_killed_rank_is_replaced_and_functions_are_compiled_for_the_new_ranks():
    job = task("-np 3 --min-np 2 --wait-for-replacements", "elastic")
    assert job.code == 0, job.report
    assert sorted((one["worker"], one["enters"], one["rank"]) for one in job.all_with("enters")) == [
        (0, 0, 0), (0, 4, 0), (1, 0, 1), (2, 0, 2), (2, 4, 1), (3, 4, 2)
    ], job.report  # fmt: skip
    assert [one["total"] for one in job.all_with("total")] == [[36.0] * 3] * 3, job.report


def test_a_lost_rank_is_named():
    job = task("-np 2", "loses_a_rank")
    assert len(job.all_with("kind")) == 1, job.report
    (said,) = job.all_with("kind")
    assert said["kind"] == "PeerLostError" and said["culprit"] == 1 and "rank 1" in said["text"], job.report
    assert "lost" in said["operation"], job.report


def test_ranks_that_compile_different_programs_are_told_both_names():
    job = task("-np 2", "traces_another_program", FARANDOLE_STALL_WARNING_S="1", FARANDOLE_STALL_SHUTDOWN_S="3")
    texts = job.output + job.errors
    assert "'allreduce.only.on.zero'" in texts and "'allreduce.jit.jax_tasks.py:" in texts, job.report
    assert "missing: rank 1" in texts and "missing: rank 0" in texts, job.report
    assert len(job.all_with("kind")) == 2, job.report


def test_functions_run_in_the_next_world():
    job = task("-np 2", "inits_again")
    assert job.code == 0, job.report
    assert [one["results"] for one in job.all_with("results")] == [[2.0, 2.0]] * 6, job.report
    assert all("call farandole.jax.init()" in one["after"] for one in job.all_with("after")), job.report
    assert len(job.all_with("after")) == 2, job.report


def test_a_call_in_flight_ends_with_the_world():
    job = task("-np 2", "leaves_a_call_in_flight")
    assert job.code == 0, job.report
    (said,) = job.all_with("kind")
    assert said["kind"] == "ShutDownError" and job.all_with("is_alive")[0]["is_alive"] is False, job.report


def test_jax_distributed_is_refused_in_compiled_functions():
    job = task("-np 2", "joins_jax_distributed", f"127.0.0.1:{free_port()}")
    assert job.code == 0, job.report
    assert all("use jax.lax.psum" in one["text"] for one in job.all_with("text")), job.report
    assert len(job.all_with("text")) == 2 and [one["direct"] for one in job.all_with("direct")] == [2.0] * 2, job.report


def test_devices_of_a_process_meet_those_of_others():
    job = task("-np 2", "maps_over_devices", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    if jax.__version_info__ < (0, 6):
        assert job.code != 0 and "does not tell a call its device; install JAX 0.6" in job.errors, job.report
        return
    assert job.code == 0, job.report
    assert [(one["devices"], one["equal"]) for one in job.all_with("devices")] == [(2, True)] * 6, job.report


def test_the_example_equals_one_process_on_the_joint_batch(tmp_path):
    results = []
    for ranks in (1, 2):
        file = tmp_path / f"{ranks}.json"
        job = Job(f"-np {ranks}", os.path.join(ROOT, "examples", "jax_digits.py"), "--epochs", 3, "--json", file)
        assert job.code == 0 and f"jax_digits: {ranks} ranks" in job.output, job.report
        results.append(json.loads(file.read_text()))
    one, two = results
    assert abs(one["loss"] - two["loss"]) < 1e-4 and abs(one["accuracy"] - two["accuracy"]) < 0.01, results
    assert all(abs(a - b) < 1e-2 for a, b in zip(one["weights"], two["weights"])), results
    assert one["accuracy"] > 0.9


def test_the_package_itself_loads_no_framework():
    program = "import sys, farandole; sys.exit(any(name in sys.modules for name in ('jax', 'torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
    assert farandole.jax.__file__
