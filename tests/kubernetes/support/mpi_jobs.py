"""MPIJobs for tests, with the files of an image that runs sshd."""

import re
import shutil
import subprocess
import sys

import builders
import pytest
from training_jobs import ACCURACY, RANK_LINE

SSHD = """Port 22
HostKey /etc/ssh/podsim_host_key
StrictModes no
PermitRootLogin prohibit-password
PidFile none
"""
SSH = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
READY = {"tcpSocket": {"port": 22}}
RANK = [sys.executable, "/app/train_digits.py"]
# Neither a rendezvous nor a key: the launcher's own service passes both on.
FORWARD = [word for name in ("DIGITS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS") for word in ("-x", name)]


def sshd_image(tmp_path):
    """The files of an image with sshd: its configuration and host key. Skips the test without sshd and mpirun."""
    missing = [package for tool, package in (("/usr/sbin/sshd", "openssh-server"), ("mpirun", "openmpi-bin"),
    ("ssh", "openssh-client"))
               if shutil.which(tool) is None]  # fmt: skip
    if missing:
        pytest.skip(f"needs Debian's {' '.join(missing)}")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    for name, text in (("sshd_config", SSHD), ("ssh_config", SSH)):
        (tmp_path / name).write_text(text)
    return {"/etc/ssh/podsim_host_key": str(tmp_path / "key"), "/etc/ssh/sshd_config": str(tmp_path / "sshd_config"),
            "/etc/ssh/ssh_config.d/podsim.conf": str(tmp_path / "ssh_config")}  # fmt: skip


def mpirun(*words, count=4):
    return ["mpirun", "--allow-run-as-root", "-np", str(count), *words]


def job(command, **more):
    documents = builders.mpi_job(2, command, spec={"launcherCreationPolicy": "WaitForWorkersReady"}, **more)
    worker = documents[1]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    worker["readinessProbe"] = READY
    return documents


def ranks_of(output):
    return sorted(tuple(int(word) for word in found[:4]) + (found[4],) for found in RANK_LINE.findall(output))


def assert_trained(sim):
    """Checks that the MPIJob pi has succeeded, with ranks 0 to 3 in order on two pods, and that training reached the
    accuracy."""
    printed = sim.pod("pi-launcher").output
    assert sim.result("pi") == "Complete", sim.logs()
    assert ranks_of(printed) == [
        (node * 2 + local, 4, local, 2, f"pi-worker-{node}") for node in range(2) for local in range(2)
    ], printed
    assert float(re.search(r"trained: accuracy ([\d.]+) .* on 4 ranks, 1 version", printed).group(1)) > ACCURACY
