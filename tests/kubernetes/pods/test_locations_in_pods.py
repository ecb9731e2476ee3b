"""Tests of --locations in simulated pods: each rank has the location of its pod's node, and no pod fails without it."""

import json
import os
import re
import shutil

import builders
import podsim
import pytest
from farandole.integrations.kubernetes import generate
from nodes_server import TOKEN, make_account
from scheduler import Node

ZONE = "topology.kubernetes.io/zone"
LAYER = "topology.k8s.aws/network-node-layer-"
API = "198.18.0.10"  # of the first pod
SHOW = ["python", "/app/show_location.py"]
SUPPORT = os.path.dirname(builders.__file__)
IMAGE = {f"/app/{name}.py": os.path.join(SUPPORT, f"{name}.py") for name in ("show_location", "nodes_server")}


def nodes_in(*zones):
    return [Node(f"node-{n}", {"cpu": "64", "memory": "64Gi"}, {ZONE: zone}) for n, zone in enumerate(zones)]


def found_by(sim):
    """{host name of a pod: what its rank has printed}"""
    printed = "\n".join(pod.output for pod in sim.pods)
    return dict(re.findall(r"(\S+) found ?(.*)", printed))


def generated(line, command=SHOW):
    return podsim.read(generate([*line.split(), *"--nproc-per-node 1 --image any --".split(), *command]))


@pytest.mark.parametrize(
    "line, pods",
    [
        ("job --nnodes 2", ["train-0", "train-1"]),
        ("jobset --nnodes 2", ["train-node-0-0", "train-node-0-1"]),
        ("pytorchjob --nnodes 2", ["train-master-0", "train-worker-0"]),
        ("trainjob --nnodes 2", ["train-node-0-0", "train-node-0-1"]),
    ],
)
def test_h12_ranks_in_two_zones_have_the_zones_of_their_nodes(simulate, line, pods):
    sim = simulate([*generated(f"{line} --locations zone"), builders.key_secret("train-key")],
                   nodes=nodes_in("us-east-1a", "us-east-1b"), image=IMAGE, admission="restricted")  # fmt: skip
    sim.wait(60)
    assert set(sim.results.values()) == {"Complete"}, sim.logs()
    assert found_by(sim) == {pods[0]: "us-east-1a", pods[1]: "us-east-1b"}, sim.logs()


def test_before_kubernetes_1_35_the_job_runs_without_locations(simulate):
    sim = simulate(generated("job --nnodes 2 --locations zone"), nodes=nodes_in("a", "b"), image=IMAGE,
                   copies_topology=False)  # fmt: skip
    sim.wait(60)
    assert sim.result("train") == "Complete", sim.logs()
    assert found_by(sim) == {"train-0": "", "train-1": ""}, sim.logs()


# ---- By the API server -----------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path):
    """The pod of an API server, and the ConfigMap with its certificate that each namespace has."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = make_account(tmp_path / "api", API)
    levels = {f"{LAYER}1": "nn-1", f"{LAYER}2": "nn-2"}
    nodes = {f"node-{n}": {ZONE: "us-east-1a", **levels, f"{LAYER}3": f"nn-3{n}"} for n in range(2)}
    (folder / "nodes.json").write_text(json.dumps(nodes))
    spec = builders.pod_spec(["python", "/app/nodes_server.py", "/api", "6443"], volumes=[
        {"name": "api", "hostPath": {"path": str(folder)}}], container_volumeMounts=[
        {"name": "api", "mountPath": "/api"}])  # fmt: skip
    ca = {"ca.crt": (folder / "ca.crt").read_text()}
    return [builders.KEY, builders.resource("v1", "Pod", "api", spec=spec),
            {**builders.resource("v1", "ConfigMap", "kube-root-ca.crt", data=ca),
             "metadata": {"name": "kube-root-ca.crt", "namespace": "ml"}}]  # fmt: skip


def run_with(simulate, cluster, documents, **options):
    """Runs the job's pods when the API server answers."""
    names = [f"train-{n}" for n in range(2)]
    sim = simulate([*cluster, *documents], held=names, nodes=nodes_in("us-east-1a", "us-east-1a"),
                   image=IMAGE, api_server=(API, "6443"), token=TOKEN, **options)  # fmt: skip
    sim.wait(20, lambda: "serving nodes" in sim.pod("api").output)
    assert sim.pod("api").addresses == [API]
    for name in names:
        sim.release(name)
    sim.wait(60, lambda: sim.result("train") != "Running")
    assert sim.result("train") == "Complete", sim.logs()
    return sim


LINE = "job --nnodes 2 --namespace ml --locations nodes"


@pytest.mark.parametrize("more", ["", "--network-policy"])
def test_h12_ranks_have_all_levels_of_their_nodes_from_the_api_server(simulate, cluster, more):
    sim = run_with(simulate, cluster, generated(f"{LINE} {more}"))
    assert sorted(found_by(sim).values()) == [
        f"* us-east-1a/nn-1/nn-2/nn-3{n}" for n in range(2)
    ], sim.logs()  # fmt: skip
    assert "farandole location: us-east-1a/nn-1/nn-2/nn-3" in sim.pod("train-0").log_of("location")


def test_without_the_right_the_job_runs_and_the_init_container_names_the_remedy(simulate, cluster):
    documents = generated(LINE)
    sim = simulate([*cluster, *documents], nodes=nodes_in("a", "a"), image=IMAGE, api_server=(API, "6443"),
                   token="another")  # fmt: skip
    sim.wait(60, lambda: sim.result("train") != "Running")
    assert sim.result("train") == "Complete", sim.logs()
    for name in ("train-0", "train-1"):
        assert "a ClusterRole that may get nodes" in sim.pod(name).log_of("location"), sim.logs()
    assert all(text.startswith("# no location: ") for text in found_by(sim).values())


def test_the_ranks_have_no_token_and_cannot_change_their_location(simulate, cluster):
    show = 'ls /var/run/secrets/kubernetes.io 2>&1; touch /farandole-location/x 2>&1; echo "found it"'
    sim = run_with(simulate, cluster, generated(LINE, ["sh", "-c", show]))
    assert "kubernetes.io': No such file" in sim.pod("train-0").output, sim.logs()
    assert "Read-only file system" in sim.pod("train-0").output, sim.logs()
