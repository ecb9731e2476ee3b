"""Tests of MPIJobs: the real mpirun starts ranks through a real sshd in other pods, as with the MPI operator."""

import re
import subprocess
import sys

from mpi_jobs import FORWARD, RANK, assert_trained, job, mpirun


def test_mpirun_trains_over_sshd_in_the_worker_pods(simulate, image):
    sim = simulate(job(mpirun("--hostfile", "/etc/mpi/hostfile", *FORWARD, *RANK)), image=image)
    sim.wait(60)
    assert_trained(sim)


def test_mpi_carries_the_data_between_pods_and_shared_memory_inside_them(simulate, image):
    carry = ["-x", "FARANDOLE_TRANSPORT=shm,mpi", "-x", "FARANDOLE_LOG_LEVEL=info"]
    sim = simulate(job(mpirun("--hostfile", "/etc/mpi/hostfile", *carry, *FORWARD, *RANK)), image=image)
    sim.wait(60)
    assert_trained(sim)
    assert re.search(r"source=openmpi .*key=pmix.*; mpi\+shm;", sim.pod("pi-launcher").output), sim.logs()


def test_the_environment_of_a_rank_is_that_of_sshd_and_not_the_pods(simulate, image):
    show = ["sh", "-c", 'echo "$(hostname) role=$K_MPI_JOB_ROLE kubernetes=$KUBERNETES_SERVICE_HOST given=$GIVEN"']
    # --hostfile is not needed: Open MPI 4 reads the operator's variables. Open MPI 5 ignores them and would start all
    # ranks in the launcher.
    sim = simulate(job(mpirun("-x", "GIVEN", *show), env={"GIVEN": "x"}), image=image)
    sim.wait(60)
    lines = sorted(line for line in sim.pod("pi-launcher").output.splitlines() if "role=" in line)
    assert lines == [f"pi-worker-{node} role= kubernetes= given=x" for node in (0, 0, 1, 1)], sim.logs()
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    assert re.search(r"Open MPI\) 4\.", version), f"this test is about Open MPI 4, but this is {version}"


def test_under_sshd_as_first_process_a_rank_never_gets_sigterm_and_its_pod_seems_to_succeed(simulate, image):
    handler = ("import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved on', "
               "os.uname().nodename, flush=True), sys.exit(143)))\n"
               "print('up on', os.uname().nodename, flush=True)\ntime.sleep(60)")  # fmt: skip
    sim = simulate(
        job(
            mpirun(
                "--hostfile",
                "/etc/mpi/hostfile",
                "--map-by",
                "node",
                sys.executable,
                "-I",
                "-S",
                "-c",
                handler,
                count=2,
            )
        ),
        image=image,
    )
    sim.wait(30, lambda: len(sim.pods) == 3 and sim.pod("pi-launcher").output.count("up on") == 2)
    lost = sim.pod("pi-worker-1")
    sim.evict(lost)
    sim.wait(30, lambda: sim.pod("pi-launcher").code is not None)
    assert "saved on pi-worker-1" not in sim.pod("pi-launcher").output
    assert lost.code == 0  # sshd's code
    assert sim.pod("pi-launcher").code != 0
