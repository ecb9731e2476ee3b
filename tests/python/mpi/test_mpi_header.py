"""farandole_mpi.h: worlds of MPI communicators, from C, under Debian's Open MPI and MPICH."""

import os
import re

import farandole
import pytest
from preload_launch import KINDS, compiled, run

FOLDER = os.path.dirname(farandole.__file__)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_communicators_become_worlds(kind, count, tmp_path):
    flags = [f"-I{FOLDER}/include", f"-L{FOLDER}", "-lfarandole", f"-Wl,-rpath,{FOLDER}", "-Wall", "-Werror"]
    code, output = run(kind, [compiled(kind, "world_of_comm.c", str(tmp_path), flags)], count=count, preload=False)
    assert code == 0, output
    assert output.count("refused: fdl_world_create_mpi: comm is an intercommunicator") == count, output
    assert output.count("refused: fdl_world_create_mpi: comm is MPI_COMM_NULL") == count, output
    for size in (0, 1, 8, 1 << 40):
        refusal = f"refused: fdl_world_create_mpi: fdl_world_options.struct_size is {size}: set it to the size"
        assert output.count(refusal) == count, output
    for name, size in (("reversed", count), ("half", count // 2)):
        over = "shm at unix:@" if size > 1 else "none at unix:@"
        found = re.findall(rf"{name}: rank (\d) of {size} over {over}, local (\d) of {size}", output)
        assert len(found) == count and all(rank == local for rank, local in found), output
