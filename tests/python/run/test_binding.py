"""`farandole run --bind-to`: which processors each rank may use."""

import os
import subprocess
import sys

import pytest
from launch import FARANDOLE
from limits import allowed

ALL = sorted(os.sched_getaffinity(0))
PRINT = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
# Binding is automatic only for a launcher that may use the whole machine and has no quota.
IS_FREE = len(ALL) == os.cpu_count() and "no ranks" not in subprocess.run(
    [FARANDOLE, "config"], capture_output=True, text=True, check=True).stdout  # fmt: skip


def run(*options, ranks=2, before=()):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}
    environment["OMP_NUM_THREADS"] = "1"  # else `run` chooses a value and writes a note
    command = [*before, FARANDOLE, "run", "-np", str(ranks), "--no-prefix", *options, "--", *PRINT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=allowed(60))


def sets(done):
    """The processors of each rank; the order of the ranks' lines is open."""
    assert done.returncode == 0, done.stderr
    return sorted(tuple(map(int, line.split())) for line in done.stdout.splitlines())


def test_two_ranks_get_cores_of_their_own():
    assert len(ALL) >= 2, "this test needs two cores"
    done = run("--bind-to", "core")
    first, second = sets(done)
    assert "farandole run: --bind-to core: each rank to " in done.stderr
    assert first and second and not set(first) & set(second)
    assert set(first) | set(second) <= set(ALL) and len(first) == len(second)


def test_it_is_automatic_where_each_rank_can_have_a_core():
    bound = sets(run())
    assert bound == (sets(run("--bind-to", "core")) if IS_FREE else [tuple(ALL)] * 2)


@pytest.mark.parametrize("options, ranks", [((), 1), ((), len(ALL) + 1), (("--bind-to", "none"), 2)])
def test_ranks_keep_the_processors_of_the_launcher_otherwise(options, ranks):
    assert sets(run(*options, ranks=ranks)) == [tuple(ALL)] * ranks


def test_a_binding_from_outside_stays():
    assert sets(run(before=["taskset", "-c", str(ALL[-1])])) == [(ALL[-1],)] * 2


def test_the_variable_of_the_option_counts():
    environment = ["env", "FARANDOLE_RUN_BIND_TO=none"]
    done = subprocess.run([*environment, FARANDOLE, "run", "-np", "2", "--no-prefix", "--", *PRINT],
                          capture_output=True, text=True, timeout=allowed(60))  # fmt: skip
    assert sets(done) == [tuple(ALL)] * 2


@pytest.mark.parametrize(
    "options, ranks, text",
    [
        (("--bind-to", "core"), 1000, f"--bind-to core: there are 1000 ranks and {len(ALL)} cores"),
        (("--bind-to", "socket"), 2, "--bind-to: socket not in {auto,core,numa,none}"),
        (("--bind-to", "core", "--min-np", "1"), 2, "--bind-to core: the ranks of an elastic job cannot be bound"),
    ],
)
def test_what_is_impossible_is_refused(options, ranks, text):
    done = run(*options, ranks=ranks)
    assert done.returncode == 64 and text in done.stderr, done.stderr


def test_the_ranks_of_an_elastic_job_are_not_bound():
    assert sets(run("--min-np", "1")) == [tuple(ALL)] * 2


def test_config_and_doctor_tell_it():
    for command in ("config", "doctor"):
        done = subprocess.run([FARANDOLE, command], capture_output=True, text=True, timeout=allowed(120))
        assert "farandole run binds " in done.stdout, done.stdout
