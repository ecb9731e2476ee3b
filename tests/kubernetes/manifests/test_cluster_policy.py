"""Tests of the example's ClusterPolicy for NVIDIA's GPU Operator: all required fields and no unknown one."""

import yaml
from manifest_checks import EKS, KUBERNETES, SCHEMAS, faults, generated, pod_of

# The required fields of nvidia.com/v1, and the fields used here, from the operator's documentation and API.
REQUIRED = {
    "operator",
    "daemonsets",
    "driver",
    "toolkit",
    "devicePlugin",
    "dcgmExporter",
    "dcgm",
    "nodeStatusExporter",
    "gfd",
}
ON_OR_OFF = {"driver", "toolkit", "devicePlugin", "gfd", "dcgm", "nodeStatusExporter"}
POLICY = yaml.safe_load((KUBERNETES / "devices" / "clusterpolicy.yaml").read_text())


def test_k9_a_cluster_policy_has_all_parts_that_are_required_and_no_other_field():
    assert (POLICY["apiVersion"], POLICY["kind"]) == ("nvidia.com/v1", "ClusterPolicy")
    assert "namespace" not in POLICY["metadata"]  # it belongs to the cluster
    spec = POLICY["spec"]
    assert set(spec) == REQUIRED
    assert all(set(spec[part]) == {"enabled"} and isinstance(spec[part]["enabled"], bool) for part in ON_OR_OFF)
    assert spec["operator"] == {"defaultRuntime": "containerd"}  # docker, crio or containerd; its default is docker
    assert set(spec["dcgmExporter"]) == {"enabled", "serviceMonitor"}
    assert set(spec["dcgmExporter"]["serviceMonitor"]) <= {
        "enabled",
        "interval",
        "honorLabels",
        "additionalLabels",
        "relabelings",
    }
    assert not faults([POLICY], custom=(SCHEMAS / "ClusterPolicy.nvidia.com.v1.json").exists())


def test_k9_the_operators_pods_tolerate_the_taints_of_the_examples_nodes_and_install_no_second_driver():
    spec = POLICY["spec"]
    assert not spec["driver"]["enabled"] and not spec["toolkit"]["enabled"] and spec["devicePlugin"]["enabled"]
    taints = {
        taint["key"]
        for path in (EKS / "eksctl").glob("*.yaml")
        for group in yaml.safe_load(path.read_text()).get("managedNodeGroups") or []
        for taint in group.get("taints") or []
    }
    tolerated = {one["key"] for one in spec["daemonsets"]["tolerations"]}
    assert taints and taints <= tolerated
    job = pod_of(generated("job --nnodes 2 --gpus 1 --efa 1 --image any -- python train.py"))["spec"]
    assert {one["key"] for one in job["tolerations"]} == tolerated
    assert "nvidia.com/gpu" in job["containers"][0]["resources"]["limits"]  # the plugin's name, and the operator's
