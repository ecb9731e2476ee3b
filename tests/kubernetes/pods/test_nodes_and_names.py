"""Tests of jobs on nodes with limited capacity, that vanish, that pull images late; and behind caches of names."""

import re
import signal
import time

import builders
import podsim
import pytest
from elastic_pods import (
    COMPLETE,
    ELASTIC,
    UNTIL_TOLD,
    all_output,
    assert_conditions,
    assert_late_pods_join,
    elastic_job,
    end_training,
    steps_of,
    until_steps,
    until_steps_anywhere,
)
from farandole.integrations.kubernetes import generate
from scheduler import Node
from training_jobs import assert_trained


def gpu_nodes(count, gpus=1):
    return [Node(f"node-{index}", {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": gpus}) for index in range(count)]


def generated(nnodes, steps, *options):
    words = f"job --nnodes {nnodes} --gpus 1 --nproc-per-node 1 --image any".split()
    until = UNTIL_TOLD if steps is None else ["--steps", str(steps)]
    command = [*ELASTIC, *until, "--step-seconds", "0.05"]
    return podsim.read(generate([*words, *options, "--", *command]))


def pass_time(sim, seconds):
    end = time.monotonic() + seconds
    sim.wait(seconds + 10, lambda: time.monotonic() > end)


def test_h16_an_elastic_job_trains_with_the_pods_that_find_a_node_and_completes_without_the_others(elastic):
    sim = elastic(generated("2:3", 60), nodes=gpu_nodes(2))
    until_steps_anywhere(sim, 2)
    (pending,) = [pod for pod in sim.pods if pod.phase == "Pending"]
    assert pending.unschedulable == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    assert sorted(pod.node for pod in sim.pods if pod is not pending) == ["node-0", "node-1"]
    sim.wait(60)
    assert_conditions(sim, "train", COMPLETE)
    assert pending.gone and not pending.main.codes


def test_k12_k19_a_preempted_pod_leaves_at_a_commit_and_its_successor_waits_for_the_node(elastic):
    """A pod of a higher priority takes the node of one pod, for as long as it runs."""
    other = builders.pod_spec(["sleep", "1000"], restartPolicy="Never", priority=1000)
    other["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    urgent = builders.resource("v1", "Pod", "urgent", spec=other)
    sim = elastic([*generated("1:3", None), builders.KEY, urgent], nodes=gpu_nodes(3), held=["urgent"])
    until_steps_anywhere(sim, 3)
    sim.release("urgent")
    sim.wait(30, lambda: any(pod.preempted_by == "urgent" and pod.code is not None for pod in sim.pods))
    (victim,) = [pod for pod in sim.pods if pod.preempted_by]
    assert victim.code == 143 and "left at step" in victim.output, sim.logs()
    until_steps_anywhere(sim, 2)
    sim.wait(20, lambda: sim.pod(victim.hostname) is not victim)
    successor = sim.pod(victim.hostname)
    assert successor.phase == "Pending", sim.logs()
    assert successor.unschedulable == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    sim.pod("urgent").signal(signal.SIGKILL)
    until_steps_anywhere(sim, 3)
    assert successor.node == victim.node, sim.logs()
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    steps = steps_of(sim)
    assert steps == list(range(1, len(steps) + 1)), sim.logs()  # no step was lost


def test_k19_pods_of_a_node_that_vanishes_are_replaced_late_on_another_one(elastic):
    """Two pods of five, pod 0 among them, and the spare node has no room before the cluster gives up the lost one."""
    documents = elastic_job("2:4", 1, steps=None, count=4, FARANDOLE_LOST_AFTER_S=2)
    for one in documents[2]["spec"]["template"]["spec"]["containers"]:
        one["resources"] = {"requests": {"nvidia.com/gpu": 1}}
    sim = elastic(documents, nodes=gpu_nodes(4))
    until_steps(sim, 4)
    lost = sim.vanish_node(sim.pod("train-0").node)
    until_steps_anywhere(sim, 3)
    assert [pod.hostname for pod in lost] == ["train-0"] and lost[0].terminating
    pass_time(sim, 3)  # on a cluster 5 minutes
    sim.forget(lost[0])
    sim.wait(10, lambda: sim.pod("train-0").phase == "Pending")
    assert "untolerated taint {node.kubernetes.io/unreachable: }" in sim.pod("train-0").unschedulable
    sim.scheduler.nodes["node-new"] = Node("node-new", {"nvidia.com/gpu": 1})  # by the autoscaler
    until_steps_anywhere(sim, 4)
    assert sim.pod("train-0").node == "node-new", sim.logs()
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    steps = steps_of(sim)
    assert len(steps) - len(set(steps)) <= 1, sim.logs()


def test_h16_pods_whose_images_come_late_join_the_others(elastic):
    late = ["node-of-train-1", "node-of-train-2"]
    sim = elastic(elastic_job("2:3", 1, steps=None), pulling=late)
    sim.wait(20, lambda: "this node leads the job" in sim.pod("train-0").output)
    sim.pulled(late[0])
    until_steps_anywhere(sim, 2)
    assert sim.pod("train-2").phase == "Pending" and not sim.pod("train-2").output
    sim.pulled(late[1])
    until_steps_anywhere(sim, 3)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)
    steps = steps_of(sim)
    assert steps == list(range(1, len(steps) + 1)), sim.logs()


@pytest.mark.parametrize("late", [0, 1])
def test_pods_of_a_job_of_fixed_size_wait_for_the_one_whose_image_comes_late(simulate, late):
    run = ["farandole", "run", "--nproc-per-node", "1", "--", *builders.TRAIN]
    documents = builders.indexed_job(2, run, env={"FARANDOLE_NNODES": 2})
    sim = simulate(documents, pulling=[f"node-of-train-{late}"])
    sim.wait(20, lambda: "farandole run: node" in sim.pod(f"train-{1 - late}").output)
    pass_time(sim, 1)
    sim.pulled(f"node-of-train-{late}")
    sim.wait(60)
    assert sim.result("train") == "Complete", sim.logs()
    assert_trained(sim, 2, ["train-0", "train-1"], 1)


# ---- Names -----------------------------------------------------------------------------------------------------------


def test_a_name_that_a_cache_knows_not_to_exist_is_found_when_that_has_expired(simulate):
    """Pod 1 asks for pod 0 before it exists. The cache goes on denying it for seconds, as CoreDNS does."""
    run = ["farandole", "run", "--nproc-per-node", "1", "--", *builders.TRAIN]
    sim = simulate(builders.indexed_job(2, run, env={"FARANDOLE_NNODES": 2}), held=["train-0"], dns_cache_s=(3, 3))
    sim.wait(20, lambda: "rank" in sim.pod("train-1").output)
    pass_time(sim, 1)
    begin = time.monotonic()
    sim.release("train-0")
    sim.wait(60)
    assert sim.result("train") == "Complete", sim.logs()
    print(f"the names were found and training ended after {time.monotonic() - begin:.1f} s")


def test_k19_a_cache_that_has_a_lost_pods_address_does_not_lead_a_late_pod_astray(elastic):
    """Pod 0 has been lost, and its name still resolves to its old address. Others answer for it."""
    sim = elastic(elastic_job("1:3", 1, steps=None), held=["train-2"], dns_cache_s=(60, 5))
    until_steps(sim, 2)
    before = sim.pod("train-0").addresses
    sim.pod("train-1").exec("getent", "hosts", "train-0.train")
    sim.held.add("train-0")
    sim.pod("train-0").kill()
    until_steps_anywhere(sim, 1)
    assert before[0] in sim.pod("train-1").exec("getent", "hosts", "train-0.train").stdout
    assert_late_pods_join(sim, "train-2", "train-0")


# ---- Seccomp ---------------------------------------------------------------------------------------------------------

TRIES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, number, arguments in (("unshare", 272, (0x10000000,)), ("io_uring_setup", 425, (1, 0)), ("keyctl", 250, (0,)),
                                ("clone", 56, (0x10000000 | 17, 0, 0, 0, 0)), ("getpid", 39, ())):
    ctypes.set_errno(0)
    print(name, libc.syscall(number, *arguments) > 0, os.strerror(ctypes.get_errno()))
"""


def test_a_generated_job_trains_under_the_profile_of_container_runtimes(elastic):
    """The generated manifests ask for RuntimeDefault, which refuses io_uring, keys and namespaces."""
    documents = podsim.read(generate(["job", "--nnodes", "2", "--image", "any", "--", *ELASTIC, "--steps", "20"]))
    job = next(one for one in documents if one["kind"] == "Job")["spec"]
    refused = builders.resource(
        "v1", "Pod", "refused", spec=builders.pod_spec(["python", "-c", TRIES], restartPolicy="Never")
    )
    refused["spec"]["securityContext"] = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert job["template"]["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    sim = elastic([*documents, builders.KEY, refused])
    sim.wait(60)
    assert sim.result("train") == "Complete" and "trained" in all_output(sim), sim.logs()
    assert re.findall(r"(\w+) (True|False) (.+)", sim.pod("refused").output) == [
        ("unshare", "False", "Operation not permitted"), ("io_uring_setup", "False", "Operation not permitted"),
        ("keyctl", "False", "Operation not permitted"), ("clone", "False", "Operation not permitted"),
        ("getpid", "True", "Success")], sim.logs()  # fmt: skip
