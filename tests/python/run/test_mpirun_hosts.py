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


# The TCP ports on which this process listens, by the tables of its network namespace.
PORTS = """
import os, time
def ports():
    mine = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            mine.add(os.readlink("/proc/self/fd/" + fd))
        except FileNotFoundError:  # that of the folder itself
            pass
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for row in open(table).read().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found
"""
# MPI may listen itself, so it starts first.
START_MPI = """
import ctypes
mpi = ctypes.CDLL('{library}')
assert mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int())) == 0
"""
# The ports that have come since `before`, once the start is over.
OWN_PORTS = """
comm.barrier()
end = time.monotonic() + 20
while ports() - before and time.monotonic() < end:
    time.sleep(0.01)
os.write(1, f"rank {comm.rank} listens at {sorted(ports() - before)}\\n".encode())
comm.barrier()
farandole.shutdown()
"""


@pytest.mark.parametrize("transport", ["auto", "mpi", "shm,mpi"])
@pytest.mark.parametrize("kind", SERVICE)
def test_a_running_job_listens_at_no_port(kind, transport, agent):
    program = PORTS + "before = ports()\n" + SUM + OWN_PORTS
    if transport != "auto":
        start = START_MPI.format(library=LIBRARY[kind])
        program = PORTS + start + "before = ports()\n" + SUM + OWN_PORTS + "assert mpi.MPI_Finalize() == 0\n"
    code, output = mpirun(kind, program, agent=agent, FARANDOLE_TRANSPORT=transport)
    assert code == 0 and len(re.findall(r"rank \d listens at \[\]", output)) == 4, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_job_with_an_address_of_its_own_keeps_its_ports(kind, agent):
    """The coordinator's, which others may know, and those through which survivors find each other."""
    program = PORTS + "before = ports()  # hydra's ranks inherit one\n" + SUM
    program += 'os.write(1, f"rank {comm.rank} listens at {len(ports() - before)}\\n".encode())\ncomm.barrier()\n'
    code, output = mpirun(kind, program, agent=agent, FARANDOLE_RENDEZVOUS="tcp://198.18.77.1:29510",
                          FARANDOLE_JOB_KEY="0123456789abcdef")  # fmt: skip
    listening = sorted(re.findall(r"rank (\d) listens at (\d)", output))
    assert code == 0 and listening == [("0", "2"), ("1", "1"), ("2", "1"), ("3", "1")], output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_job_without_those_ports_says_why_it_cannot_shrink(kind, agent):
    program = (
        SUM
        + """
try:
    farandole.shrink()
except farandole.UnsupportedError as error:
    os.write(1, f"refused: {error}\\n".encode())
"""
    )
    code, output = mpirun(kind, program, agent=agent)
    assert code == 0 and output.count("mpirun ends a job that loses a rank") == 4, output


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
