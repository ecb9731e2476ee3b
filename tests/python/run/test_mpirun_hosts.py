"""Tests of mpirun over two hosts without any variable of farandole's: the launcher's own service, PMIx or PMI, gives
the ranks the coordinator's address and a fresh key."""

import re

import pytest
from mpi_launch import LIBRARY, RANK, SERVICE, agent_in, mpirun

SUM = """
import os, sys, farandole
farandole.init()
comm = farandole.Communicator()
import numpy
got = comm.allreduce(numpy.full(1000, comm.rank + 1.0, "float32"), op="sum")
assert (got == sum(range(1, comm.size + 1))).all(), got
os.write(1, f"rank {comm.rank} of {comm.size} on {farandole.info()['host']}\\n".encode())  # whole lines
"""


@pytest.fixture
def agent(tmp_path):
    return agent_in(tmp_path)


@pytest.mark.parametrize("kind", SERVICE)
def test_ranks_on_two_hosts_meet_without_a_variable(kind, agent):
    code, output = mpirun(kind, SUM, agent=agent)
    assert code == 0, output
    ranks = sorted(re.findall(r"rank (\d) of 4 on (host-\w)", output))
    assert ranks == [("0", "host-a"), ("1", "host-a"), ("2", "host-b"), ("3", "host-b")], output
    assert f"key={SERVICE[kind]}" in output and "key=derived" not in output, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_world_can_be_made_again(kind, agent):
    code, output = mpirun(kind, SUM + "farandole.shutdown()\n" + SUM, agent=agent)
    assert code == 0 and len(re.findall(r"rank \d of 4 on", output)) == 8, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_rank_that_never_comes_is_missed_in_time(kind, agent):
    """Rank 3 sleeps."""
    late = RANK + "import time\nif rank == '3': time.sleep(6)\n"
    code, output = mpirun(kind, late + SUM, agent=agent, FARANDOLE_START_TIMEOUT_S="2")
    assert code != 0, output
    assert "not all ranks that the launcher started have reached the start of farandole" in output, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_failure_of_rank_0_reaches_the_others(kind, agent):
    """Rank 0 cannot serve: its interface does not exist."""
    broken = RANK + "if rank == '0': os.environ['FARANDOLE_INTERFACES'] = 'nowhere0'\n"
    show = "\nimport traceback, time\ntry:\n" + "".join(f"    {line}\n" for line in SUM.splitlines() if line)
    show += "except Exception as e:\n    print(type(e).__name__, e, flush=True)\n    time.sleep(1)\n    sys.exit(3)\n"
    code, output = mpirun(kind, broken + show, agent=agent, FARANDOLE_START_TIMEOUT_S="20")
    assert code != 0, output
    assert "rank 0 could not serve the coordinator: interfaces: there is no 'nowhere0'" in output, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_host_with_too_many_addresses_names_the_remedy(kind, agent):
    """PMI passes on at most 1024 bytes."""
    many = "for i in $(seq 100 160); do ip addr add 198.18.99.$i/24 dev cable; done"
    code, output = mpirun(kind, SUM, agent=agent, setup=many)
    assert code != 0, output
    assert "too many addresses" in output and "FARANDOLE_INTERFACES" in output, output
    assert "rank 0 could not serve the coordinator: " in output, output


@pytest.mark.parametrize("kind", SERVICE)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_program_may_use_mpi_itself(kind, when, agent):
    """MPI_Init before or after farandole's start, MPI_Finalize before the end: no launcher complains."""
    mpi = f"import ctypes\nmpi = ctypes.CDLL('{LIBRARY[kind]}')\n"
    begin = "assert mpi.MPI_Init(None, None) == 0\n"
    end = "\nassert mpi.MPI_Finalize() == 0\n"
    program = mpi + (begin + SUM if when == "before" else SUM + begin) + end
    code, output = mpirun(kind, program, agent=agent)
    assert code == 0 and len(re.findall(r"rank \d of 4 on", output)) == 4, output
    assert "BAD TERMINATION" not in output and "exiting improperly" not in output, output
