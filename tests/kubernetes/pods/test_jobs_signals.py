"""Tests of SIGTERM in pods: ranks get it and have time to save, and the pod ends with 143, never 0; also behind
sshd."""

import sys

import builders
import pytest
from mpi_jobs import job, mpirun

pytestmark = pytest.mark.usefixtures("numbering")
# The handler may run within print(), so it does not call that.
SAVE = "os.write(1, ('saved on ' + os.uname().nodename + chr(10)).encode())"
SAVES = ("import os, signal, sys, time\n"
         f"signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), {SAVE}, sys.exit(143)))\n"
         "print('up on', os.uname().nodename, flush=True)\ntime.sleep(60)")  # fmt: skip
RANK = ["python", "-I", "-S", "-c", SAVES]


def test_ranks_of_a_preempted_pod_save_and_the_pod_ends_with_143(simulate):
    run = ["farandole", "run", "--nproc-per-node", "2", "--", *RANK]
    rules = {"podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}
    sim = simulate(builders.indexed_job(2, run, env={"FARANDOLE_NNODES": 2}, rules=rules))
    sim.wait(20, lambda: all(pod.output.count("up on") == 2 for pod in sim.pods) and len(sim.pods) == 2)
    lost = sim.pod("train-1")
    sim.evict(lost, grace=10)
    sim.wait(20, lambda: lost.code is not None)
    assert lost.code == 143 and lost.output.count("saved on train-1") == 2, sim.logs()
    assert sim.result("train") == "Running"  # the end of an evicted pod is not a failure of the job


def test_behind_sshd_init_a_rank_gets_sigterm_and_the_pod_ends_with_143(simulate, image, tmp_path):
    # The rank writes a file, because mpirun may end by the lost connection before it has printed the rank's output.
    saves = SAVES.replace(SAVE, "open('/state/' + os.uname().nodename, 'w').close()")
    options = {"volumes": [{"name": "s", "persistentVolumeClaim": {"claimName": "state"}}],
            "container_volumeMounts": [{"name": "s", "mountPath": "/state"}]}  # fmt: skip
    command = mpirun("--hostfile", "/etc/mpi/hostfile", "--map-by", "node", sys.executable, *RANK[1:-1], saves, count=2)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    sim = simulate(
        job(command, worker=["farandole", "sshd-init"], **options),
        image=image,
        claims={"state": str(state)},
    )
    sim.wait(30, lambda: len(sim.pods) == 3 and sim.pod("pi-launcher").output.count("up on") == 2)
    lost = sim.pod("pi-worker-1")
    sim.evict(lost, grace=15)
    sim.wait(30, lambda: lost.code is not None)
    assert lost.code == 143, sim.logs()
    assert (tmp_path / "state" / "pi-worker-1").exists(), sim.logs()


def test_a_pod_that_is_missing_is_named_by_its_name(simulate):
    run = ["farandole", "run", "--nproc-per-node", "2", "--", *builders.TRAIN]
    documents = builders.indexed_job(
        2, run, env={"FARANDOLE_NNODES": 2, "FARANDOLE_START_TIMEOUT_S": 3}, rules={"backoffLimit": 0}
    )
    sim = simulate(documents, held=["train-1"])
    sim.wait(25, lambda: sim.pods[0].code is not None)
    assert sim.pods[0].code == 200 and "train-1" in sim.pods[0].output, sim.logs()


@pytest.mark.parametrize("closed", [False, True])
def test_doctor_measures_every_pair_of_pods_and_fails_where_ports_are_closed(simulate, closed):
    from network_policies import policy

    run = ["farandole", "run", "--nproc-per-node", "1", "--", "farandole", "doctor"]
    env = {"FARANDOLE_NNODES": 2, "FARANDOLE_PORT_BASE": 29500, "FARANDOLE_START_TIMEOUT_S": 6}
    walls = [policy(29500, 29500)] if closed else [policy()]
    sim = simulate([*builders.indexed_job(2, run, env=env, rules={"backoffLimit": 0}), *walls])
    sim.wait(60)
    if closed:
        assert sim.result("train").startswith("Failed")
    else:
        assert sim.result("train") == "Complete" and "pair" in sim.pods[0].output + sim.pods[1].output
