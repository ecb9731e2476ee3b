"""Starts programs with the real mpirun of Debian's Open MPI and MPICH, on this host or on the two of two_hosts.py."""

import os
import subprocess
import sys
import tempfile

from launch import ROOT, SUPPORT

TWO_HOSTS = os.path.join(SUPPORT, "two_hosts.py")
BOTH = "198.18.77.1:2,198.18.77.2:2"
SERVICE = {"openmpi": "pmix", "hydra": "pmi"}
LIBRARY = {"openmpi": "libmpi.so.40", "hydra": "libmpich.so.12"}

# The first line of programs that need the rank before farandole has started.
RANK = "import os\nrank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\n"


# Hydra's proxies connect to a port of mpiexec, which ends if anything else does: "cannot find proxy with ID 402653187"
# are the first bytes of libfabric's call (3, 0, 0, 24). libfabric keeps calling the port of an endpoint that has gone,
# and such a port may be mpiexec's by then. Therefore mpiexec's are not among those that the kernel gives out.
HYDRA_PORTS = "20000:24999"


def run_launcher(command, environment, deadline_s):
    """Returns (exit code, output) of a command in the project's folder. Its standard input neither has data nor ends:
    MPICH's hydra forwards both to the ranks, and SIGPIPE kills it without a word if they have ended meanwhile. Its
    folder for temporary files is its own: two jobs of Open MPI that start at the same time may fail to make the folder
    that they share ("A call to mkdir was unable to create the desired directory")."""
    silent, kept_open = os.pipe()
    try:
        with tempfile.TemporaryDirectory(prefix="mpi", dir="/tmp", ignore_cleanup_errors=True) as folder:
            environment = {**environment, "TMPDIR": folder, "MPIEXEC_PORT_RANGE": HYDRA_PORTS}
            ended = subprocess.run(command, env=environment, cwd=ROOT, stdin=silent, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, timeout=deadline_s)  # fmt: skip
    finally:
        os.close(silent)
        os.close(kept_open)
    return ended.returncode, ended.stdout


def _launcher(kind, count, agent):
    if kind == "openmpi":
        where = ["--mca", "plm_rsh_agent", agent, "--host", BOTH] if agent else ["--oversubscribe"]
        return ["mpirun.openmpi", "--allow-run-as-root", *where, "-n", str(count)]
    where = ["-launcher", "ssh", "-launcher-exec", agent, "-hosts", BOTH] if agent else []
    return ["mpiexec.hydra", *where, "-n", str(count)]


def mpirun(kind, program, count=4, agent="", setup="true", deadline_s=60, **variables):
    """Returns (exit code, output) of that many ranks of a program, given as text. With an agent they are on two hosts:
    the file that the launcher starts as its remote shell. `setup`: commands of a shell on the first host."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))},
        "FARANDOLE_LOG_LEVEL": "info", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables}  # fmt: skip
    forward = []
    if kind == "openmpi":
        forward = [word for name in ("FARANDOLE_LOG_LEVEL", "PYTHONPATH", *variables) for word in ("-x", name)]
    outside = [sys.executable, TWO_HOSTS] if agent else []
    outside += ["sh", "-c", f'{setup}; exec "$@"', "sh"]
    command = [*outside, *_launcher(kind, count, agent), *forward, sys.executable, "-c", program]
    return run_launcher(command, environment, deadline_s)


def agent_in(folder):
    """Writes the remote shell of the two hosts."""
    path = folder / "agent"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {TWO_HOSTS} "$@"\n')
    path.chmod(0o755)
    return str(path)


def for_mpi4py(kind, folder):
    """The variables with which mpi4py of PyPI uses that MPI: Debian's MPICH has another name than its ABI says."""
    if kind == "openmpi":
        return {"MPI4PY_MPIABI": "openmpi"}
    found = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=True).stdout
    path = next(line.split(" => ")[1] for line in found.splitlines() if line.strip().startswith(LIBRARY[kind] + " "))
    (folder / "libmpi.so.12").symlink_to(path)
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder)}
