"""What a program may do to MPI under farandole's feet: finalize it first, load two of them, free the communicator."""

import pytest
from mpi_launch import LIBRARY, SERVICE, for_mpi4py, mpirun
from transport_programs import REPORT, START

START_MPI = """
import ctypes
mpi = ctypes.CDLL('{library}')
assert mpi.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int())) == 0
"""
SUM = 'assert (comm.allreduce(np.full(9, r + 1.0), op="sum") == n * (n + 1) / 2).all()\n'


@pytest.mark.parametrize("kind", SERVICE)
def test_an_operation_after_mpi_was_finalized_is_an_error_that_says_so(kind):
    program = START_MPI.format(library=LIBRARY[kind]) + START + SUM
    # Each rank exits with 0: mpirun ends the other ranks at once when one exits with another code.
    program += """
assert mpi.MPI_Finalize() == 0
try:
    comm.allreduce(np.ones(9), op="sum")
except farandole.ShutDownError as error:
    os.write(1, f"refused: {error}\\n".encode())
"""
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi")
    refused = "refused: mpi: MPI has been finalized; call MPI_Finalize after the last operation"
    assert code == 0 and output.count(refused) == 2, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_program_finds_that_farandole_has_started_mpi_and_may_finalize_it(kind):
    program = f"""
import ctypes
mpi = ctypes.CDLL('{LIBRARY[kind]}')
started = ctypes.c_int()
assert mpi.MPI_Initialized(ctypes.byref(started)) == 0 and started.value == 1
farandole.shutdown()
comm = None
assert mpi.MPI_Finalize() == 0
os.write(1, b"ended well\\n")
"""
    code, output = mpirun(kind, START + SUM + program, count=2, FARANDOLE_TRANSPORT="mpi")
    assert code == 0 and output.count("ended well") == 2, output


@pytest.mark.parametrize("kind", SERVICE)
def test_two_loaded_mpis_are_one_error_that_names_both_and_the_variable(kind):
    both = "".join(f"ctypes.CDLL('{file}')\n" for file in LIBRARY.values())
    program = REPORT + "import ctypes, farandole\n" + both + "attempt(farandole.init)\n"
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi")
    assert code != 0 and "this process has loaded 2 MPIs: " in output, output
    assert all(file in output for file in LIBRARY.values()) and "FARANDOLE_MPI_LIBRARY" in output, output


@pytest.mark.parametrize("kind", SERVICE)
def test_of_two_loaded_mpis_the_one_that_was_started_is_taken(kind):
    other = LIBRARY["hydra" if kind == "openmpi" else "openmpi"]
    program = START_MPI.format(library=LIBRARY[kind]) + f"ctypes.CDLL('{other}')\n" + START + SUM
    program += "os.write(1, b'right\\n')\nfarandole.shutdown()\ncomm = None\nassert mpi.MPI_Finalize() == 0\n"
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi")
    assert code == 0 and output.count("right") == 2, output


@pytest.mark.parametrize("kind", SERVICE)
def test_a_library_that_is_no_mpi_is_an_error_with_its_name(kind):
    program = REPORT + "import farandole\nattempt(farandole.init)\n"
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT="mpi", FARANDOLE_MPI_LIBRARY="libm.so.6")
    assert code != 0 and "libm.so.6 has no MPI_" in output and "needs MPI 3" in output, output


@pytest.mark.parametrize("transport", ["auto", "mpi"])
@pytest.mark.parametrize("kind", SERVICE)
def test_a_communicator_may_be_freed_under_the_world_that_it_made(kind, transport, tmp_path):
    program = f"""
from mpi4py import MPI
import os
import numpy as np, farandole
given = MPI.COMM_WORLD.Dup()
farandole.init(comm=given)
comm = farandole.Communicator()
given.Free()
r, n = comm.rank, comm.size
{SUM}second = farandole.Communicator()
assert (second.allreduce(np.ones(9), op="sum") == n).all()
os.write(1, b"right\\n")
"""
    code, output = mpirun(kind, program, count=2, FARANDOLE_TRANSPORT=transport, **for_mpi4py(kind, tmp_path))
    assert code == 0 and output.count("right") == 2, output
