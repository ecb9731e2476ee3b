"""Tests of generated jobs whose pods are scheduled together, or claim their devices."""

import podsim
import pytest
from elastic_pods import COMPLETE, ELASTIC, UNTIL_TOLD, assert_conditions, end_training, until_steps_anywhere
from farandole.integrations.kubernetes import generate
from scheduler import CHANNELS, Node

GPUS = "gpu.nvidia.com"


def nodes_of(count, **devices):
    return [Node(f"node-{n}", {"cpu": "2", "memory": "8Gi"}, devices=devices or {GPUS: 1}) for n in range(count)]


def generated(name, nnodes, steps, options=""):
    words = f"job --name {name} --nnodes {nnodes} --cpus 2 --memory 2Gi --shm 64Mi --nproc-per-node 1 --image any"
    until = UNTIL_TOLD if steps is None else ["--steps", str(steps)]
    command = [*ELASTIC, *until, "--step-seconds", "0.05"]
    return podsim.read(generate([*words.split(), *options.split(), "--", *command]))


# ---- PodGroups -------------------------------------------------------------------------------------------------------


def two_jobs(elastic, options):
    """Two nodes, and two jobs that need both. Pod 1 of the job "one" is created after all pods of "two"."""
    documents = [*generated("one", 2, 20, options), *generated("two", 2, 20, options)]
    sim = elastic(documents, nodes=nodes_of(2), held=["one-1"])
    sim.wait(20, lambda: len(sim.pods) == 3)
    return sim


@pytest.mark.parametrize("kind", ["volcano", "coscheduling"])
def test_of_two_jobs_with_groups_one_runs_after_the_other(elastic, kind):
    sim = two_jobs(elastic, f"--gang {kind}")
    assert [pod.node for pod in sim.pods if pod.hostname.startswith("two")] == ["node-0", "node-1"]
    sim.release("one-1")
    sim.wait(10, lambda: len(sim.pods) == 4)
    waiting = [pod for pod in sim.pods if pod.hostname.startswith("one")]
    assert all("pod group one is not ready: 0 of 2 pods can run." in pod.unschedulable for pod in waiting), sim.logs()
    assert all(pod.phase == "Pending" for pod in waiting)
    sim.wait(60)
    assert sim.results == {"one": "Complete", "two": "Complete"}, sim.logs()


def test_without_groups_each_of_two_jobs_holds_a_node_that_the_other_needs(elastic):
    sim = two_jobs(elastic, "")
    sim.release("one-1")
    sim.wait(10, lambda: len(sim.pods) == 4)
    for name in ("one", "two"):
        assert sorted(sim.pod(f"{name}-{index}").phase for index in range(2)) == ["Pending", "Running"], sim.logs()


def test_h16_an_elastic_group_trains_with_its_minimum_and_accepts_late_pods_and_successors(elastic):
    sim = elastic(generated("train", "2:3", None, "--gang volcano"), nodes=nodes_of(1))
    sim.wait(20, lambda: len(sim.pods) == 3)
    sim.step()
    assert all(pod.unschedulable.startswith("pod group train is not ready: 1 of 2") for pod in sim.pods), sim.logs()
    sim.scheduler.nodes["node-1"] = nodes_of(2)[1]
    until_steps_anywhere(sim, 2)
    assert sim.pod("train-2").unschedulable == "0/2 nodes are available: 2 Insufficient cpu."
    sim.scheduler.nodes["node-2"] = nodes_of(3)[2]
    until_steps_anywhere(sim, 3)
    lost = sim.pod("train-1")
    sim.evict(lost)
    sim.wait(20, lambda: sim.pod("train-1") is not lost)
    until_steps_anywhere(sim, 3)
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)


# ---- Claims of devices -----------------------------------------------------------------------------------------------


def test_h16_pods_claim_their_devices_and_a_successor_claims_those_of_its_predecessor(elastic):
    """Both nodes have room for all pods, and one device each."""
    nodes = [Node(f"node-{n}", {"cpu": "64", "memory": "64Gi"}, devices={GPUS: 1}) for n in range(2)]
    sim = elastic(generated("train", "1:3", None, f"--gpus 1 --device-class {GPUS}"), nodes=nodes)
    until_steps_anywhere(sim, 2)
    assert sorted(pod.node for pod in sim.pods if pod.phase == "Running") == ["node-0", "node-1"]
    (waiting,) = [pod for pod in sim.pods if pod.phase == "Pending"]
    assert waiting.unschedulable == "0/2 nodes are available: 2 cannot allocate all claims."
    lost = sim.pod("train-1")
    sim.evict(lost)
    sim.wait(20, lambda: lost.gone)
    until_steps_anywhere(sim, 2)
    assert sorted(pod.node for pod in sim.living() if pod.phase == "Running") == ["node-0", "node-1"]
    end_training(sim)
    assert_conditions(sim, "train", COMPLETE)


def test_h16_an_elastic_job_begins_when_its_compute_domain_has_the_nodes_of_its_minimum(elastic):
    options = f"--gpus 1 --device-class {GPUS} --compute-domain"
    nodes = [Node(f"node-{n}", {"cpu": "64", "memory": "64Gi"}, devices={GPUS: 4, CHANNELS: 1}) for n in range(2)]
    sim = elastic(generated("train", "2:3", 60, options), nodes=nodes, held=["train-1", "train-2"])
    sim.wait(20, lambda: sim.pods and sim.pods[0].node == "node-0")
    assert sim.pods[0].phase == "Pending" and not sim.pods[0].output
    sim.release("train-1")
    sim.release("train-2")
    until_steps_anywhere(sim, 2)
    waiting = sim.pod("train-2")
    assert waiting.unschedulable == "0/2 nodes are available: 2 cannot allocate all claims."
    sim.wait(60)
    assert_conditions(sim, "train", COMPLETE)
