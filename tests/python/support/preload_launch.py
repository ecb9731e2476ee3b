"""Compiles programs against Debian's Open MPI and MPICH, and runs them with farandole's library preloaded."""

import os
import subprocess

import farandole
from mpi_launch import run_launcher

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.normpath(os.path.join(HERE, "..", "mpi"))
KINDS = ["openmpi", "mpich"]


def library(kind):
    return os.path.join(os.path.dirname(farandole.__file__), f"libfarandole_mpi_preload_{kind}.so")


def compiled(kind, source, folder, flags=()):
    """Compiles a file of tests/python/mpi, in C or Fortran, and returns the program."""
    program = os.path.join(folder, f"{os.path.splitext(source)[0]}_{kind}")
    # In old Fortran a buffer may be of any type, which compilers refuse otherwise.
    compiler = [f"mpicc.{kind}"] if source.endswith(".c") else [f"mpifort.{kind}", "-fallow-argument-mismatch"]
    subprocess.run([*compiler, "-O1", "-g", "-o", program, os.path.join(PROGRAMS, source), *flags], check=True)
    return program


def run(kind, command, count=2, preload=True, deadline_s=120, **variables):
    """Returns (exit code, output) of that many ranks of a command."""
    # Without measurements farandole runs every collective that it can, so that the tests do not depend on times.
    preset = {"FARANDOLE_LOG_LEVEL": "info", "FARANDOLE_MPI_PRELOAD_AFTER": "2", "FARANDOLE_MPI_PRELOAD_MEASURE": "0"}
    variables = {**preset, **variables}
    if preload:
        variables["LD_PRELOAD"] = library(kind) if preload is True else preload
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))},
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # fmt: skip
    if kind == "openmpi":
        launcher = ["mpirun.openmpi", "--oversubscribe", "-n", str(count)]
        forward = [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
    else:
        launcher = ["mpiexec.hydra", "-n", str(count)]
        forward = [word for name, value in variables.items() for word in ("-genv", name, value)]
    return run_launcher([*launcher, *forward, *command], environment, deadline_s)
