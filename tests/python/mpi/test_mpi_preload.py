"""Programs that use MPI alone, with farandole's library preloaded, under Debian's Open MPI and MPICH."""

import re

import pytest
from preload_launch import KINDS, compiled, run


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def random_collectives(kind, tmp_path_factory):
    return compiled(kind, "random_collectives.c", str(tmp_path_factory.mktemp("programs")))


@pytest.mark.parametrize("count", [2, 4])
def test_random_collectives_are_those_of_mpi(kind, random_collectives, count):
    code, output = run(kind, [random_collectives, "7", "1500"], count=count)
    assert code == 0 and output.count("1500 turns are right") == count, output
    ran = re.search(r"farandole ran (\d+) collectives on (\d+) communicators", output)
    assert ran and int(ran[1]) > 400 and int(ran[2]) > 20, output


def test_without_it_mpi_runs_alone(kind, random_collectives):
    code, output = run(kind, [random_collectives, "7", "100"], preload=False)
    assert code == 0 and "farandole" not in output, output


def test_messages_move_while_a_rank_waits_in_a_collective(kind, tmp_path):
    code, output = run(kind, [compiled(kind, "progress.c", str(tmp_path))])
    assert code == 0 and "20 messages are right" in output and "farandole ran 18 collectives" in output, output


@pytest.mark.parametrize("age, ran", [("old", 33), ("new", 18)])
def test_fortran_programs(kind, tmp_path, age, ran):
    code, output = run(kind, [compiled(kind, f"{age}_fortran.f90", str(tmp_path))])
    assert code == 0 and f"{age} Fortran is right" in output and f"farandole ran {ran} collectives" in output, output
