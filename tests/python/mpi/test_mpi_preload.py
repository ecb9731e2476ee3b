"""Programs that use MPI alone, with farandole's library preloaded, under Debian's Open MPI and MPICH."""

import re

import pytest
from mpi_launch import agent_in, mpirun
from preload_launch import KINDS, compiled, library, run


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def random_collectives(kind, tmp_path_factory):
    return compiled(kind, "random_collectives.c", str(tmp_path_factory.mktemp("programs")))


@pytest.mark.parametrize("count", [2, 4])
def test_random_collectives_are_those_of_mpi(kind, random_collectives, count):
    code, output = run(kind, [random_collectives, "7", "600"], count=count)
    assert code == 0 and output.count("600 turns are right") == count, output
    ran = re.search(r"farandole ran (\d+) collectives on (\d+) communicators", output)
    assert ran and int(ran[1]) > 150 and int(ran[2]) > 8, output


def test_all_ranks_choose_what_was_faster(kind, random_collectives):
    """The job would hang or be wrong if ranks chose differently."""
    environment = {"FARANDOLE_MPI_PRELOAD_MEASURE": "1", "FARANDOLE_LOG_LEVEL": "debug"}
    code, output = run(kind, [random_collectives, "5", "300"], **environment)
    assert code == 0 and output.count("300 turns are right") == 2, output
    line = r"(\w+) of about (\d+) bytes on 2 ranks: farandole ([\d.]+) us, MPI ([\d.]+) us; (\w+) runs it"
    choices = re.findall(line, output)
    assert len({kind for kind, *_ in choices}) > 10, output
    for _, _, ours, theirs, runner in choices:
        assert float(ours) == float(theirs) or (float(ours) < float(theirs)) == (runner == "farandole"), output


def test_without_it_mpi_runs_alone(kind, random_collectives):
    code, output = run(kind, [random_collectives, "7", "100"], preload=False)
    assert code == 0 and "farandole" not in output, output


def test_messages_move_while_a_rank_waits_in_a_collective(kind, tmp_path):
    code, output = run(kind, [compiled(kind, "progress.c", str(tmp_path))])
    assert code == 0 and "20 messages are right" in output and "farandole ran 18 collectives" in output, output


def test_a_rank_that_waits_does_not_sleep_while_it_has_a_window(kind, tmp_path):
    """A rank that slept between two looks for messages would sleep at least once for most of the 400 additions."""
    code, output = run(kind, [compiled(kind, "windows.c", str(tmp_path))])
    assert code == 0 and re.search(r"farandole ran \d+ collectives", output), output
    slept = re.search(r"the sums are right; slept (\d+) and (\d+) times", output)
    assert slept and max(int(slept[1]), int(slept[2])) < 100, output


def test_a_window_that_is_tested_after_a_barrier_has_what_was_completed_before_it(kind, tmp_path):
    code, output = run(kind, [compiled(kind, "epochs.c", str(tmp_path))])
    assert code == 0 and "found the end of 200 of 200 accesses" in output, output
    assert int(re.search(r"farandole ran (\d+) collectives", output)[1]) > 400, output


@pytest.mark.parametrize("age, ran", [("old", 33), ("new", 18)])
def test_fortran_programs(kind, tmp_path, age, ran):
    code, output = run(kind, [compiled(kind, f"{age}_fortran.f90", str(tmp_path))])
    assert code == 0 and f"{age} Fortran is right" in output and f"farandole ran {ran} collectives" in output, output


def test_on_two_hosts_communicators_of_one_host_are_taken_over(kind, random_collectives, tmp_path):
    program = f"""
import os
os.environ.update(LD_PRELOAD={library(kind)!r}, FARANDOLE_MPI_PRELOAD_AFTER="2", FARANDOLE_MPI_PRELOAD_MEASURE="0")
os.execv({random_collectives!r}, [{random_collectives!r}, "7", "300"])
"""
    code, output = mpirun({"mpich": "hydra"}.get(kind, kind), program, agent=agent_in(tmp_path), deadline_s=120)
    assert code == 0 and output.count("300 turns are right") == 4, output
    assert output.count("runs collectives of the 2 ranks of this host") == 2, output
    ran = [int(number) for number in re.findall(r"farandole ran (\d+) collectives", output)]
    assert len(ran) == 2 and 0 < min(ran) and max(ran) < 150, output


@pytest.mark.parametrize("count", [2, 3])
def test_everything_else_is_passed_on(kind, tmp_path, count):
    code, output = run(kind, [compiled(kind, "passed_on.c", str(tmp_path))], count=count)
    assert code == 0 and "what was passed on is right" in output, output
    assert "farandole ran 0 collectives" in output, output


def test_communicators_come_and_go_by_the_hundred(kind, tmp_path):
    command = [compiled(kind, "many_communicators.c", str(tmp_path))]
    code, output = run(kind, command)
    assert code == 0 and output.count("descriptors are left") == 2, output
    ran = re.search(r"farandole ran (\d+) collectives on (\d+) communicators", output)
    assert ran and int(ran[2]) == 20 + 256, output
    code, output = run(kind, command, FARANDOLE_MPI_PRELOAD_AFTER="32")
    assert code == 0 and "farandole ran 0 collectives" in output, output


def test_threads_use_communicators_of_their_own(kind, tmp_path):
    code, output = run(kind, [compiled(kind, "threads.c", str(tmp_path))])
    assert code == 0 and "threads are right" in output, output


@pytest.mark.parametrize("count", [2, 3])
def test_nonblocking_collectives_are_those_of_mpi(kind, tmp_path, count):
    code, output = run(kind, [compiled(kind, "nonblocking.c", str(tmp_path))], count=count)
    assert code == 0 and "60 turns are right" in output, output
    ran = re.search(r"farandole ran (\d+) collectives", output)
    assert ran and int(ran[1]) > 500, output  # of 600 that do not block, and of blocking ones


@pytest.mark.parametrize("count", [2, 3])
def test_persistent_requests_are_those_of_mpi(count, tmp_path):
    """Debian's Open MPI has no persistent collectives; mpi_packages.sh runs this program under Open MPI 5."""
    code, output = run("mpich", [compiled("mpich", "persistent.c", str(tmp_path))], count=count)
    assert code == 0 and "persistent requests are right" in output, output
    ran = re.search(r"farandole ran (\d+) collectives on 2 communicators", output)
    assert ran and int(ran[1]) == 20, output  # made; each is started 12 times


# ---- Failures ----


@pytest.mark.parametrize("way", ["return", "handler"])
def test_a_failure_reaches_the_error_handler(kind, tmp_path, way):
    _, output = run(kind, [compiled(kind, "errors.c", str(tmp_path)), way])
    for rank in (0, 1):
        for when, handled in (("", 1), (" again", 2)):
            handled = handled if way == "handler" else 0
            assert re.search(rf"rank {rank}{when}: .*farandole: .*, handled {handled}\n", output), output
    assert output.count("handler: ") == (4 if way == "handler" else 0), output


def test_a_failure_ends_the_job_if_the_program_has_no_handler(kind, tmp_path):
    code, output = run(kind, [compiled(kind, "errors.c", str(tmp_path)), "fatal"])
    assert code != 0 and "farandole: " in output and "again" not in output, output


def test_the_library_of_another_abi_is_one_error_that_names_the_right_one(kind, random_collectives):
    other = KINDS[1 - KINDS.index(kind)]
    code, output = run(kind, [random_collectives, "1", "10"], preload=library(other))
    assert code != 0 and "has loaded an MPI of another ABI" in output, output
    assert f"preload libfarandole_mpi_preload_{kind}.so instead" in output, output


@pytest.mark.parametrize("variable", ["FARANDOLE_MPI_PRELOAD=0", "FARANDOLE_SLICE_BYTES=nonsense"])
def test_if_one_rank_cannot_start_all_go_on_with_mpi(kind, random_collectives, variable):
    command = ["sh", "-c", 'test "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 0 || export ' + variable + '; exec "$0" "$@"']
    code, output = run(kind, [*command, random_collectives, "3", "100"], count=3)
    assert code == 0 and output.count("100 turns are right") == 3, output
    assert "farandole ran" not in output, output
    if "SLICE" in variable:
        assert "MPI runs all collectives of this host" in output and "nonsense" in output, output
