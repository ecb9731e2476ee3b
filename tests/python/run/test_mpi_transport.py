"""Tests of the transport over MPI, under the real mpirun of Open MPI and MPICH."""

import re
import subprocess
import sys

import pytest
from launch import FARANDOLE
from limits import allowed
from mpi_launch import LIBRARY, RANK, SERVICE, agent_in, for_mpi4py, mpirun
from transport_programs import COLLECTIVES, NAMED, REPORT, START

WHOLE = (
    START
    + """
for dtype in ("float32", "float64", "int8", "uint16", "int64"):
    for count in (0, 1, 7, 1000, 1 << 18):
        x = (np.arange(count) % 3 + r).astype(dtype)
        parts = [(np.arange(count) % 3 + k).astype(dtype) for k in range(n)]
        assert (comm.allreduce(x, op="sum", algorithm="whole") == sum(parts)).all(), (dtype, count)
        assert (comm.allreduce(x, op="max", algorithm="whole") == parts[-1]).all(), (dtype, count)
y = np.full(10, r + 1.0, "float32")
comm.allreduce(y, op="average", out=y, algorithm="whole")
assert (y == (n + 1) / 2).all(), y
z = comm.reduce(np.full(5, r, "int32"), op="sum", root=n - 1, algorithm="whole")
assert r != n - 1 or (np.asarray(z) == n * (n - 1) // 2).all()
assert (np.asarray(comm.broadcast(np.full(5, r, "float16"), root=n - 1, algorithm="whole")) == n - 1).all()
assert (comm.allgather(np.full(3, r), algorithm="whole") == np.arange(n)[:, None]).all()
for refused in (dict(x=np.ones(3, "float16")), dict(x=np.ones(3, "float32"), deterministic=True)):
    try:
        comm.allreduce(refused.pop("x"), op="sum", algorithm="whole", **refused)
    except farandole.Error as error:
        assert "whole" in str(error), error
    else:
        raise AssertionError("it must be refused")
comm.barrier(algorithm="whole")
os.write(1, f"ok {r} of {n} by MPI's own\\n".encode())
"""
)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("kind", SERVICE)
def test_collectives_are_exact(kind, count):
    code, output = mpirun(kind, COLLECTIVES, count=count, FARANDOLE_TRANSPORT="mpi")
    assert code == 0, output
    assert len(re.findall(rf"rank \d of {count} over {'mpi' if count > 1 else 'none'}", output)) == count, output


@pytest.mark.parametrize("kind", SERVICE)
def test_mpi_runs_whole_collectives_where_they_are_asked_for(kind):
    code, output = mpirun(kind, WHOLE, count=3, FARANDOLE_TRANSPORT="mpi")
    assert code == 0 and output.count("by MPI's own") == 3, output


@pytest.mark.parametrize("kind", SERVICE)
def test_what_mpi_lacks_runs_as_a_schedule_if_whole_is_the_setting(kind):
    code, output = mpirun(kind, COLLECTIVES, count=2, FARANDOLE_TRANSPORT="mpi", FARANDOLE_ALGORITHM="whole")
    assert code == 0 and output.count("over mpi") == 2, output


@pytest.mark.parametrize("kind", SERVICE)
def test_named_operations_come_in_any_order(kind):
    code, output = mpirun(kind, NAMED, count=3, FARANDOLE_TRANSPORT="mpi")
    assert code == 0 and output.count("by name") == 3, output


@pytest.mark.parametrize("kind", SERVICE)
def test_shared_memory_inside_hosts_and_mpi_between_them(kind, tmp_path):
    code, output = mpirun(kind, COLLECTIVES, agent=agent_in(tmp_path), FARANDOLE_TRANSPORT="shm,mpi")
    assert code == 0 and len(re.findall(r"rank \d of 4 over mpi\+shm", output)) == 4, output


@pytest.mark.parametrize("kind", SERVICE)
def test_the_library_is_named_in_the_log(kind):
    _, output = mpirun(kind, COLLECTIVES, count=2, FARANDOLE_TRANSPORT="mpi")
    name = "Open MPI v4" if kind == "openmpi" else "MPICH Version: 4"
    assert re.search(rf"mpi: {name}.*\(.*{LIBRARY[kind]}.*\)", output), output


# MPI_THREAD_SINGLE to MPI_THREAD_MULTIPLE are 0 to 3 in all ABIs.
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("kind", SERVICE)
def test_a_program_may_have_started_mpi(kind, level):
    start = f"""
import ctypes
mpi = ctypes.CDLL('{LIBRARY[kind]}')
got = ctypes.c_int()
assert mpi.MPI_Init_thread(None, None, {level}, ctypes.byref(got)) == 0 and got.value >= {level}
"""
    end = "\nfarandole.shutdown()\ncomm = None\nassert mpi.MPI_Finalize() == 0\n"
    code, output = mpirun(kind, start + COLLECTIVES + end, count=2, FARANDOLE_TRANSPORT="mpi")
    assert code == 0 and output.count("over mpi") == 2, output


# An MPI for one thread: operations move while that thread waits in farandole.
ONE_THREAD = """
import ctypes
mpi = ctypes.CDLL('{library}')
assert mpi.MPI_Init_thread(None, None, {level}, ctypes.byref(ctypes.c_int())) == 0
"""
LEVELS = [(0, "MPI_THREAD_SINGLE"), (1, "MPI_THREAD_FUNNELED")]


@pytest.mark.parametrize("level, name", LEVELS)
@pytest.mark.parametrize("kind", SERVICE)
@pytest.mark.parametrize("program", ["ordered", "named"])
def test_the_thread_of_an_mpi_for_one_thread_drives(program, kind, level, name):
    start = ONE_THREAD.format(library=LIBRARY[kind], level=level)
    if program == "ordered":
        text, done = COLLECTIVES + "\nfarandole.shutdown()\ncomm = None\n", "over mpi"
    else:
        text, done = NAMED + "\nhvd.shutdown()\n", "by name"
    code, output = mpirun(kind, start + text + "assert mpi.MPI_Finalize() == 0\n", count=2, FARANDOLE_TRANSPORT="mpi")
    assert code == 0 and output.count(done) == 2, output
    assert output.count(f"was started with {name}: operations move on only while") == 1, output


@pytest.mark.parametrize("what", ["call", "world"])
@pytest.mark.parametrize("level, name", LEVELS)
@pytest.mark.parametrize("kind", SERVICE)
def test_another_thread_gets_one_clear_error_from_an_mpi_for_one_thread(kind, level, name, what, tmp_path):
    start = ONE_THREAD.format(library=LIBRARY[kind], level=level)
    in_thread = """
import threading, time
# The ranks end together: MPI's launcher ends the others when one ends without MPI_Finalize.
def in_a_thread(work):
    ended = []
    def run():
        try:
            work()
        except farandole.Error as error:
            ended.append(str(error))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    os.write(1, f"error: {ended}\\n".encode())
    open(os.path.join(os.environ["FOLDER"], str(os.getpid())), "w").close()
    end = time.monotonic() + float(os.environ["LIMIT_S"])
    while len(os.listdir(os.environ["FOLDER"])) < 2 and time.monotonic() < end:
        time.sleep(0.01)
"""
    if what == "call":
        body = START + in_thread + 'in_a_thread(lambda: comm.allreduce(np.ones(3), op="sum"))\nos._exit(0)\n'
    else:
        body = "import os, farandole" + in_thread + "in_a_thread(farandole.init)\nos._exit(0)\n"
    limits = dict(FOLDER=str(tmp_path), LIMIT_S=str(allowed(30)))
    _, output = mpirun(kind, start + body, count=2, FARANDOLE_TRANSPORT="mpi", **limits)
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and all(f"was started with {name}, so only the thread" in each for each in errors), output


@pytest.mark.parametrize("kind", SERVICE)
def test_an_mpi_that_was_finalized_is_refused(kind):
    start = f"""
import ctypes, farandole
mpi = ctypes.CDLL('{LIBRARY[kind]}')
assert mpi.MPI_Init(None, None) == 0 and mpi.MPI_Finalize() == 0
attempt(farandole.init)
"""
    code, output = mpirun(kind, REPORT + start, count=2, FARANDOLE_TRANSPORT="mpi")
    assert code != 0 and "has called MPI_Finalize" in output, output


@pytest.mark.parametrize("kind", SERVICE)
def test_the_library_of_another_mpi_is_an_error_that_names_it(kind):
    other = LIBRARY["hydra" if kind == "openmpi" else "openmpi"]
    # Under another launcher each rank of Open MPI is a job of its own, with a folder of its own: see run_launcher.
    alone = "import os, tempfile\nos.environ['TMPDIR'] = tempfile.mkdtemp()\n"
    program = alone + REPORT + "import farandole\nattempt(farandole.init)\n"
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi", FARANDOLE_MPI_LIBRARY=other)
    assert code != 0 and "MPI_COMM_WORLD" in output and "FARANDOLE_MPI_LIBRARY" in output, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_missing_library_is_an_error_with_its_name(kind):
    program = REPORT + "import farandole\nattempt(farandole.init)\n"
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi", FARANDOLE_MPI_LIBRARY="/nowhere/libmpi.so")
    assert code != 0 and "/nowhere/libmpi.so" in output, output


def test_without_an_mpirun_it_is_never_replaced_by_another_transport():
    ended = subprocess.run(
        [FARANDOLE, "run", "-np", "2", "--", sys.executable, "-c", "import farandole; farandole.init()"],
        env={"PATH": "/usr/bin:/bin", "FARANDOLE_TRANSPORT": "mpi"},
        capture_output=True, text=True, timeout=allowed(60))  # fmt: skip
    assert ended.returncode != 0
    assert "no mpirun has started this process and no MPI is loaded" in ended.stderr + ended.stdout


@pytest.mark.parametrize("kind", SERVICE)
def test_ranks_that_differ_get_an_error_that_names_both(kind):
    program = (
        REPORT
        + """
import numpy as np, farandole
farandole.init()
comm = farandole.Communicator()
attempt(lambda: comm.allreduce(np.ones(100 + 9000 * (comm.rank == 1)), op="sum"))
"""
    )
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi")
    assert code != 0 and re.search(r"MismatchError: .*rank 0 .*rank 1|MismatchError: .*rank 1 .*rank 0", output), output


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("kind", SERVICE)
def test_the_job_ends_when_a_rank_is_killed(kind, victim):
    program = (
        RANK
        + f"""
import signal, threading
import numpy as np, farandole
farandole.init()
comm = farandole.Communicator()
if comm.rank == {victim}:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
while True:
    comm.allreduce(np.ones(1000), op="sum")
"""
    )
    code, _ = mpirun(kind, program, count=3, deadline_s=30, FARANDOLE_TRANSPORT="mpi")
    assert code != 0


COMMUNICATORS = """
from mpi4py import MPI
import os
import numpy as np, farandole
world = MPI.COMM_WORLD
part = world.Split(world.rank % 2, key=-world.rank)  # odd and even ranks, the highest first
for comm in (world, part):
    farandole.init(comm=comm)
    assert (farandole.rank(), farandole.size()) == (comm.rank, comm.size)
    own = farandole.Communicator()
    assert (own.allreduce(np.full(1000, world.rank + 1.0), op="sum") == comm.allreduce(world.rank + 1)).all()
    own.free()
    farandole.shutdown()
os.write(1, f"rank {world.rank} has made two worlds\\n".encode())
"""


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize("kind", SERVICE)
def test_the_ranks_of_an_mpi4py_communicator_are_a_world(kind, transport, tmp_path):
    code, output = mpirun(kind, COMMUNICATORS, FARANDOLE_TRANSPORT=transport, **for_mpi4py(kind, tmp_path))
    assert code == 0 and output.count("has made two worlds") == 4, output


@pytest.mark.parametrize("kind", SERVICE)
def test_an_mpi4py_communicator_of_two_hosts(kind, tmp_path):
    code, output = mpirun(
        kind, COMMUNICATORS, agent=agent_in(tmp_path), FARANDOLE_TRANSPORT="shm,mpi", **for_mpi4py(kind, tmp_path)
    )
    assert code == 0 and output.count("has made two worlds") == 4, output


@pytest.mark.parametrize("kind", SERVICE)
def test_horovods_init_takes_an_mpi4py_communicator(kind, tmp_path):
    program = """
from mpi4py import MPI
import os
import farandole.torch as hvd, torch
hvd.init(comm=MPI.COMM_WORLD)
assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
os.write(1, f"rank {hvd.rank()} of {hvd.size()} by comm\\n".encode())
"""
    code, output = mpirun(kind, program, count=2, **for_mpi4py(kind, tmp_path))
    assert code == 0 and output.count("of 2 by comm") == 2, output
