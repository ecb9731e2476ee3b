"""Tests of the scheduler's rules: capacity, selectors, priorities, the pods that it preempts, PodGroups, and claims."""

import builders
import controllers
import podsim
import pytest
from farandole.integrations.kubernetes import generate, instances
from manifest_checks import generated, pod_of
from scheduler import Node, Scheduler, requests_of


def pod(cpu="1", **more):
    return {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **more}


def scheduler(*cpus, **labels):
    nodes = [Node(f"node-{index}", {"cpu": cpu, "nvidia.com/gpu": 1}) for index, cpu in enumerate(cpus)]
    nodes[-1].labels = labels
    return Scheduler(nodes, [builders.resource("v1", "PriorityClass", "low", value=-10),
                             builders.resource("v1", "PriorityClass", "high", value=1000)])  # fmt: skip


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


# ---- PodGroups -------------------------------------------------------------------------------------------------------

GANGS = ["volcano", "coscheduling"]
KINDS_WITH_GROUPS = [
    f"{kind} --nnodes 3"
    for kind in ("job", "jobset", "statefulset", "lws", "pytorchjob", "tfjob", "trainjob", "mpijob")
]
KINDS_WITH_GROUPS += ["deployment --nnodes 3:3", "mpijob --nnodes 3 --implementation mpich"]


def gang(kind, nnodes, nodes):
    """The scheduler, and the plans of the pods of a generated Job with a PodGroup."""
    words = f"job --nnodes {nnodes} --cpus 1 --memory 1Gi --shm 64Mi --image i --gang {kind} -- train".split()
    documents = podsim.read(generate(words))
    (workload,) = controllers.workloads(documents)
    return Scheduler([Node(f"node-{n}", {"cpu": "1", "memory": "4Gi"}) for n in range(nodes)], documents), workload.pods


def names_and_decisions(chooses, plans, running=(), begun=()):
    found = chooses.schedule([(plan.stem, plan) for plan in plans], running, begun)
    return {name: (decision.node, decision.reason) for name, decision in found}


@pytest.mark.parametrize("kind", GANGS)
def test_no_pod_of_a_group_gets_a_node_before_all_can(kind):
    chooses, plans = gang(kind, 3, nodes=2)
    not_ready = "pod group train is not ready: 2 of 3 pods can run."
    full = f"{not_ready} 0/2 nodes are available: 2 Insufficient cpu."
    assert names_and_decisions(chooses, plans) == {
        "train-0": ("", not_ready), "train-1": ("", not_ready), "train-2": ("", full)}  # fmt: skip
    chooses.nodes["node-2"] = Node("node-2", {"cpu": "1", "memory": "4Gi"})
    assert sorted(node for node, _ in names_and_decisions(chooses, plans).values()) == ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize("kind", GANGS)
@pytest.mark.parametrize("job", KINDS_WITH_GROUPS)
def test_the_pods_with_ranks_of_every_kind_are_a_group(job, kind):
    """Of an MPIJob they are the workers; its launcher is created later."""
    words = f"{job} --cpus 1 --memory 1Gi --shm 64Mi --image i --gang {kind} -- train".split()
    documents = podsim.read(generate(words))
    plans = [plan for one in controllers.workloads(documents) for plan in one.pods if plan.role != "launcher"]
    assert len(plans) == 3
    chooses = Scheduler([Node(f"node-{n}", {"cpu": "1", "memory": "4Gi"}) for n in range(2)], documents)
    assert {node for node, _ in names_and_decisions(chooses, plans).values()} == {""}
    chooses.nodes["node-2"] = Node("node-2", {"cpu": "1", "memory": "4Gi"})
    assert all(node for node, _ in names_and_decisions(chooses, plans).values())


@pytest.mark.parametrize("kind", GANGS)
def test_a_successor_joins_the_pods_of_its_group_that_run_or_have_succeeded(kind):
    chooses, plans = gang(kind, 3, nodes=3)
    group = next(iter(chooses.groups))
    running = [(plan.stem, plan.template, f"node-{plan.index}") for plan in plans[:2]]
    assert names_and_decisions(chooses, plans[2:], running, [group, group])["train-2"] == ("node-2", "")
    assert names_and_decisions(chooses, plans[2:], running[:1], [group])["train-2"][0] == ""
    assert names_and_decisions(chooses, plans[2:], running, [group, None])["train-2"][0] == ""


@pytest.mark.parametrize("kind", GANGS)
def test_an_elastic_group_begins_with_its_minimum(kind):
    chooses, plans = gang(kind, "2:3", nodes=2)
    assert [names_and_decisions(chooses, plans)[plan.stem] for plan in plans] == [
        ("node-0", ""), ("node-1", ""), ("", "0/2 nodes are available: 2 Insufficient cpu.")]  # fmt: skip


@pytest.mark.parametrize("kind", GANGS)
def test_a_group_that_does_not_exist_is_waited_for(kind):
    chooses, plans = gang(kind, 1, nodes=1)
    chooses.groups.clear()
    assert names_and_decisions(chooses, plans) == {"train-0": ("", "pod group train does not exist.")}


def test_another_scheduler_reads_no_groups():
    chooses, plans = gang("volcano", 3, nodes=2)
    for plan in plans:
        del plan.template["schedulerName"]
    assert [node for node, _ in names_and_decisions(chooses, plans).values()] == ["node-0", "node-1", ""]


def test_a_group_that_is_not_ready_preempts_nothing():
    chooses, plans = gang("volcano", 3, nodes=2)
    for plan in plans:
        plan.template["priority"] = 1000
    running = [("other", pod(), "node-0")]
    decisions = list(chooses.schedule([(plan.stem, plan) for plan in plans], running))
    assert [one.victims for _, one in decisions] == [[], [], []]


# ---- Claims of devices -----------------------------------------------------------------------------------------------

DRIVER = {"gpu.nvidia.com": 4}


def claiming(options, nodes=1, devices=DRIVER):
    words = f"job --nnodes 2 --gpus 2 --cpus 1 --memory 1Gi --shm 64Mi --image i {options} -- train".split()
    documents = podsim.read(generate(words))
    spec = controllers.workloads(documents)[0].pods[0].template
    chooses = Scheduler([Node(f"node-{n}", {"cpu": "64", "memory": "64Gi"}, devices=devices) for n in range(nodes)],
                        documents)  # fmt: skip
    return chooses, spec


def test_claims_take_the_devices_of_their_class_and_no_plugins_resource():
    chooses, spec = claiming("--device-class gpu.nvidia.com")
    assert "nvidia.com/gpu" not in requests_of(spec)
    assert chooses.place(spec, []).node == "node-0"
    assert chooses.place(spec, [("a", spec, "node-0")]).node == "node-0"
    full = chooses.place(spec, [("a", spec, "node-0"), ("b", spec, "node-0")])
    assert (full.node, full.reason) == ("", "0/1 nodes are available: 1 cannot allocate all claims.")


def test_a_claim_of_another_class_or_without_its_template_gets_no_node():
    chooses, spec = claiming("--device-class gpu.example.com")
    assert chooses.place(spec, []).reason == "0/1 nodes are available: 1 cannot allocate all claims."
    chooses.templates.clear()
    assert chooses.place(spec, []).reason == "waiting for a claim: there is no ResourceClaimTemplate train-gpus."


def test_a_compute_domain_gives_a_channel_on_each_node_and_begins_when_it_has_its_nodes():
    devices = {**DRIVER, "compute-domain-default-channel.nvidia.com": 1}
    chooses, spec = claiming("--device-class gpu.nvidia.com --compute-domain", nodes=2, devices=devices)
    first = [("a", spec, chooses.place(spec, []).node)]
    assert chooses.domain_lacks_nodes(spec, first)
    both = [*first, ("b", spec, chooses.place(spec, first).node)]
    assert sorted(node for *_, node in both) == ["node-0", "node-1"]  # 4 GPUs a node, but one channel
    assert not chooses.domain_lacks_nodes(spec, both)
    assert chooses.place(spec, both).reason == "0/2 nodes are available: 2 cannot allocate all claims."
    assert not chooses.domain_lacks_nodes(pod(), [])
