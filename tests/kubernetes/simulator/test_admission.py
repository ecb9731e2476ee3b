"""Tests of Pod Security admission in podsim, and that generated and shipped pods pass its strictest level."""

import copy

import pytest
from admission import violations
from kinds_of_jobs import AFTER, KINDS, everything
from manifest_checks import KUBERNETES, generated, pods_of, read

GOOD = next(pods_of(generated(f"job {AFTER}")))["spec"]
# What is changed in the pod and in its container, the level that refuses it, and the words of the refusal.
BAD = [
    ({"hostNetwork": True}, {}, "baseline", "hostNetwork=true"),
    ({"hostPID": True}, {}, "baseline", "hostPID=true"),
    ({"volumes": [{"name": "dev", "hostPath": {"path": "/dev/infiniband"}}]}, {}, "baseline", "hostPath"),
    ({"volumes": [{"name": "n", "nfs": {"server": "s", "path": "/"}}]}, {}, "restricted", "restricted volume types"),
    ({}, {"privileged": True}, "baseline", "privileged"),
    ({}, {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}, "baseline", "adds IPC_LOCK"),
    ({}, {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}, "restricted", "adds more than NET_BIND_SERVICE"),
    ({}, {"capabilities": {}}, "restricted", 'must set drop=["ALL"]'),
    ({}, {"allowPrivilegeEscalation": True}, "restricted", "allowPrivilegeEscalation"),
    ({}, {"runAsNonRoot": False}, "restricted", "runAsNonRoot"),
    ({}, {"runAsUser": 0}, "restricted", "runAsUser=0"),
    ({}, {"seccompProfile": {"type": "Unconfined"}}, "baseline", "seccompProfile"),
    ({"securityContext": {"runAsNonRoot": True}}, {}, "restricted", "seccompProfile"),
]


@pytest.mark.parametrize("pod, security, level, why", BAD, ids=[why for *_, why in BAD])
def test_a_level_refuses_what_it_names_and_the_level_below_does_not(pod, security, level, why):
    spec = copy.deepcopy(GOOD)
    spec.update(pod)
    spec["containers"][0]["securityContext"].update(security)
    assert any(why in line for line in violations(spec, level)), violations(spec, level)
    below = {"restricted": "baseline", "baseline": "privileged"}[level]
    assert violations(spec, below) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_generated_pod_may_run_in_a_restricted_namespace(kind):
    for line in (f"{KINDS[kind]} {AFTER}", f"{KINDS[kind]} {everything(KINDS[kind])} {AFTER}"):
        for pod in pods_of(generated(line)):
            assert violations(pod["spec"], "restricted") == []


def test_the_nodes_network_is_all_that_a_restricted_namespace_refuses():
    (pod,) = pods_of(generated(f"job --host-network {AFTER}"))
    assert violations(pod["spec"], "restricted") == ["host namespaces (hostNetwork=true)"]


@pytest.mark.parametrize("folder", ["k8s", "kubeflow", "ray", "monitoring"])
def test_every_shipped_pod_may_run_in_a_restricted_namespace(folder):
    pods = 0
    for path in (KUBERNETES / folder).rglob("*.yaml"):
        for document in read(path) if "overlays" not in path.parts else []:  # these are parts of kustomize
            for pod in pods_of(document):
                pods += 1
                assert violations(pod["spec"], "restricted") == [], path
    assert pods


def test_a_pod_that_is_refused_is_not_created_and_its_controller_tries_again(simulate):
    documents = generated("job --nnodes 2 --image any -- true")
    job = next(one for one in documents if one["kind"] == "Job")
    del job["spec"]["template"]["spec"]["securityContext"]["seccompProfile"]
    sim = simulate(documents, admission="restricted")
    sim.wait(20, lambda: len(sim.refusals) >= 4)
    assert sim.pods == [] and sim.result("train") == "Running"
    text = 'pods "train-0" is forbidden: violates PodSecurity "restricted": '
    assert any(line.startswith(text) and "must be RuntimeDefault" in line for line in sim.refusals), sim.refusals
