"""Tests of jobs under bad conditions: missing, late, lost or duplicate pods, wrong names, and tight limits."""

import re
import time

import builders
import mesh_sidecar
import pytest
from training_jobs import assert_trained, starter

SLOW = ["--steps", "400", "--step-seconds", "0.05"]


def slow(run):
    return [*run, *SLOW]


def job(count, run=None, rules=None, env=None, **more):
    run = run or starter(count, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500")
    rules = {"backoffLimit": 0, "backoffLimitPerIndex": 0, "maxFailedIndexes": count, **(rules or {})}
    return builders.indexed_job(count, run, rules=rules, env={"FARANDOLE_START_TIMEOUT_S": 20, **(env or {})}, **more)


def until_training(sim):
    sim.wait(30, lambda: any("step 2" in pod.output for pod in sim.pods))


# ---- Starting --------------------------------------------------------------------------------------------------------


def test_a_pod_that_is_missing_at_start_is_named_at_the_deadline(simulate):
    sim = simulate(job(3, env={"FARANDOLE_START_TIMEOUT_S": 3}), held=["train-1"])
    begin = time.monotonic()
    sim.wait(25, lambda: sum(pod.code is not None for pod in sim.pods) == 2)
    assert time.monotonic() - begin < 15
    for pod in sim.pods:
        assert pod.code != 0 and "ranks 2 and 3 of 6 have not arrived after 3 s" in pod.output, sim.logs()


def test_a_pod_that_arrives_late_is_waited_for(simulate):
    sim = simulate(job(2), held=["train-1"])
    sim.wait(10, lambda: "rank 0" in sim.pods[0].output or sim.pods[0].main.pid)
    time.sleep(1)
    sim.release("train-1")
    sim.wait(30)
    assert_trained(sim, 4, ["train-0", "train-1"])


def test_two_pods_that_claim_one_rank_are_both_named(simulate):
    sim = simulate(job(2, starter(2, "0", "train-0.train:29500"), env={"FARANDOLE_START_TIMEOUT_S": 4}))
    sim.wait(30, lambda: all(pod.code is not None for pod in sim.pods))
    assert all(pod.code != 0 for pod in sim.pods)
    printed = sim.pods[0].output + sim.pods[1].output
    assert re.search(
        r"two processes claim to be rank \d: process \d+ on train-(\d), .* process \d+ on train-(?!\1)\d; give", printed
    ), sim.logs()


def test_a_job_works_behind_a_sidecar_that_is_ready_late_and_delays_everything(simulate):
    command = ["python3", "-I", "-S", "/app/mesh_sidecar.py", "1.5", "0.01"]
    documents = job(2, env={"FARANDOLE_PORT_BASE": 29500})
    documents[2]["spec"]["template"]["spec"]["containers"].append(
        {"name": "sidecar", "image": "any", "command": command}
    )
    sim = simulate(documents, image={"/app/mesh_sidecar.py": mesh_sidecar.__file__})
    for pod in sim.pods:
        pod.enforce(mesh_sidecar.RULES)
    sim.wait(60, lambda: all(pod.main.codes for pod in sim.pods))  # the sidecar outlives the container
    assert sim.pod("train-0").log_of("sidecar").count("carried") > 4, (
        sim.logs()
    )  # connections of the coordinator and of the ranks
    assert_trained(sim, 4, ["train-0", "train-1"])


# ---- Losing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1])
def test_the_others_end_and_name_the_lost_rank_when_a_pod_dies_without_notice(simulate, lost):
    run = slow(starter(2, "$(JOB_COMPLETION_INDEX)", "train-0.train:29500"))
    sim = simulate(job(2, run))
    until_training(sim)
    gone, left = sim.pods[lost], sim.pods[1 - lost]
    begin = time.monotonic()
    gone.kill()
    sim.wait(20, lambda: left.code is not None)
    assert time.monotonic() - begin < 10 and gone.code == 137 and left.code not in (0, None)
    assert re.search(rf"rank \d on train-{lost} \(process \d+\) was lost|coordinator|rendezvous", left.output), (
        left.output
    )


# ---- Tight limits ----------------------------------------------------------------------------------------------------


def test_a_job_trains_as_uid_1000_with_a_read_only_root_and_no_rights_and_64_mib_of_shared_memory(simulate):
    options = {"container_securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "readOnlyRootFilesystem": True,
                                          "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "automountServiceAccountToken": False}  # fmt: skip
    sim = simulate(job(2, **options))
    sim.wait(40)
    assert_trained(sim, 4, ["train-0", "train-1"])


def test_a_job_trains_with_a_quota_of_half_a_core(simulate):
    sim = simulate(job(2, container_resources={"limits": {"cpu": "500m", "memory": "512Mi"}}))
    sim.wait(60)
    assert_trained(sim, 4, ["train-0", "train-1"])


def test_a_job_trains_where_there_is_only_ipv6(simulate):
    sim = simulate(job(2), families="6")
    sim.wait(40)
    assert_trained(sim, 4, ["train-0", "train-1"])
