"""Tests of the scheduler's rules: capacity, selectors, priorities, and the pods that it preempts."""

import pytest
from farandole.integrations.kubernetes import instances
from manifest_checks import generated, pod_of
from scheduler import Node, Scheduler, requests_of


def pod(cpu="1", **more):
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **more}


def scheduler(*cpus, **labels):
    nodes = [Node(f"node-{index}", {"cpu": cpu, "nvidia.com/gpu": 1}) for index, cpu in enumerate(cpus)]
    nodes[-1].labels = labels
    return Scheduler(nodes, {"low": -10, "high": 1000})


def test_requests_are_those_of_all_containers_and_at_least_of_each_init_container():
    spec = {"containers": [{"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "4", "nvidia.com/gpu": 2}}},
                           {"resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}, {}],
            "initContainers": [{"resources": {"requests": {"cpu": "3"}}}]}  # fmt: skip
    assert requests_of(spec) == {"cpu": 3, "nvidia.com/gpu": 2, "memory": 1 << 30}


def test_pods_go_to_the_emptiest_node_and_wait_where_none_has_room():
    chooses = scheduler("2", "2")
    running = []
    for index in range(4):
        node = chooses.place(pod(), running).node
        running.append((index, pod(), node))
    assert [one[2] for one in running] == ["node-0", "node-1", "node-0", "node-1"]
    decision = chooses.place(pod(), running)
    assert decision.reason == "0/2 nodes are available: 2 Insufficient cpu." and decision.victims == []
    assert chooses.place(pod(), running[1:]).node == "node-0"


@pytest.mark.parametrize("name", instances.TABLE)
def test_a_generated_pod_of_a_whole_node_finds_room_on_one_node_beside_daemons_and_a_second_pod_does_not(name):
    row = instances.TABLE[name]
    cpus, mib = row.allocatable
    capacity = {"cpu": str(cpus), "memory": f"{mib}Mi", "vpc.amazonaws.com/efa": row.efa}
    if row.resource:
        capacity[row.resource] = row.accelerators
    chooses = Scheduler([Node("node-0", capacity, {"node.kubernetes.io/instance-type": name})])
    efa, ranks = "all" if row.efa else "off", "gpu" if row.accelerators else "1"
    line = f"job --nnodes 2 --instance-type {name} --efa {efa} --nproc-per-node {ranks} --image i -- train"
    spec = pod_of(generated(line))["spec"]
    running = [("daemons", {"containers": [{"resources": {"requests": {"cpu": "900m", "memory": "900Mi"}}}]}, "node-0")]
    assert chooses.place(spec, running).node == "node-0"
    second = chooses.place(spec, [*running, ("first", spec, "node-0")])
    assert second.node == "" and "1 Insufficient memory" in second.reason


def test_selectors_and_unreachable_nodes_are_named():
    chooses = scheduler("2", "2", pool="gpu")
    assert chooses.place(pod(nodeSelector={"pool": "gpu"}), []).node == "node-1"
    chooses.nodes["node-1"].reachable = False
    assert chooses.place(pod(nodeSelector={"pool": "gpu"}), []).reason == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."
    )


@pytest.mark.parametrize("spec,victims", [
    (pod("2", priorityClassName="high"), ["b", "a"]), (pod("1", priorityClassName="high"), ["b"]),
    (pod("1", priority=-5), ["b"]), (pod("2", priority=-5), []), (pod("9", priorityClassName="high"), []),
    (pod("1", priorityClassName="high", preemptionPolicy="Never"), []), (pod("1", priorityClassName="low"), []),
])  # fmt: skip
def test_pods_of_lower_priority_are_preempted_as_few_as_possible(spec, victims):
    running = [("a", pod(), "node-0"), ("b", pod(priorityClassName="low"), "node-0")]
    assert scheduler("2").place(spec, running).victims == victims
