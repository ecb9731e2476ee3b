"""Tests that the commands of the shipped manifests start ranks unchanged and train."""

import os
import re
import sys
from pathlib import Path

import podsim
import pytest
from farandole.integrations.kubernetes import generate
from scheduler import Node

pytestmark = pytest.mark.usefixtures("numbering")
ROOT = str(Path(__file__).resolve().parents[3])
RECIPES = os.path.join(ROOT, "examples", "kubernetes")
MPICH = os.path.join(ROOT, "build", "mpi", "mpich", "bin", "mpiexec")
PASSWD = (
    "root:x:0:0:root:/root:/bin/sh\n"
    "sshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
    "farandole:x:1000:1000::/home/farandole:/bin/sh\n"
)
SECRET = {
    "kind": "Secret",
    "apiVersion": "v1",
    "metadata": {"name": "train-key"},
    "stringData": {"key": "0123456789abcdef0123456789abcdef"},
}
ENDLESS = ("StatefulSet", "LeaderWorkerSet")


@pytest.fixture
def image(tmp_path):
    """The parts of the shipped image that the manifests use."""
    if not os.path.isdir(RECIPES):
        pytest.skip("examples/kubernetes is not here")
    files = {"/etc/passwd": PASSWD}
    for name in ("python", "farandole"):  # sshd's PATH has no virtual environment
        files[f"/usr/local/bin/{name}"] = f'#!/bin/sh\nexec {os.path.dirname(sys.executable)}/{name} "$@"\n'
    mounts = {"/app": RECIPES, "/etc/ssh/sshd_config": os.path.join(RECIPES, "docker", "sshd_config"),
              "/etc/ssh/ssh_config": os.path.join(RECIPES, "docker", "ssh_config")}  # fmt: skip
    if os.access(MPICH, os.X_OK):  # part of the image for mpijob-mpich.yaml
        files["/usr/local/bin/mpiexec"] = f'#!/bin/sh\nexec {MPICH} "$@"\n'
    for path, text in files.items():
        place = tmp_path / path.replace("/", "_")
        place.write_text(text)
        place.chmod(0o755)
        mounts[path] = str(place)
    return mounts


def documents_of(name):
    documents = podsim.read(os.path.join(RECIPES, name))
    kinds = {(one["kind"], one["metadata"]["name"]) for one in documents}
    return documents if ("Secret", "train-key") in kinds else [*documents, SECRET]


@pytest.mark.parametrize("name", ["k8s/statefulset.yaml", "k8s/lws.yaml", "kubeflow/pytorchjob-elastic.yaml",
                                  "kubeflow/trainjob-torch.yaml", "kubeflow/mpijob-openmpi.yaml"])  # fmt: skip
def test_a_shipped_manifest_trains_as_it_is(simulate, image, name):
    documents = documents_of(name)
    sim = simulate(documents, image=image, variables={"HOME": "/home/farandole"})
    if any(one["kind"] in ENDLESS for one in documents):
        sim.wait(
            90,
            lambda: (
                any(re.search(r"\bloss\s*=", pod.output) for pod in sim.pods)
                and any(0 in pod.main.codes for pod in sim.pods)
            ),
        )
    else:
        sim.wait(90)
        assert set(sim.results.values()) == {"Complete"}, sim.logs()
    assert re.search(r"\bloss\s*=", "".join(pod.output for pod in sim.pods)), sim.logs()


def test_k3_the_shipped_manifest_for_mpich_trains_as_it_is(simulate, image):
    if not os.access(MPICH, os.X_OK):
        pytest.skip("needs PyPI's mpich in build/mpi: bash tests/kubernetes/setup.sh")
    test_a_shipped_manifest_trains_as_it_is(simulate, image, "kubeflow/mpijob-mpich.yaml")


@pytest.mark.parametrize("implementation", ["openmpi", "mpich"])
def test_h12_ranks_under_mpirun_have_the_zone_of_their_own_pod(simulate, image, implementation):
    """sshd gives ranks no variable of their pod, and mpirun gives them those of the launcher, which is elsewhere."""
    if implementation == "mpich" and not os.access(MPICH, os.X_OK):
        pytest.skip("needs PyPI's mpich in build/mpi: bash tests/kubernetes/setup.sh")
    line = f"mpijob --nnodes 2 --locations zone --implementation {implementation} --system-selector pool=system"
    words = [*line.split(), "--image", "any", "--", "python", "/srv/show_location.py"]
    program = os.path.join(ROOT, "tests", "kubernetes", "support", "show_location.py")
    room, label = {"cpu": "64", "memory": "64Gi"}, "topology.kubernetes.io/zone"
    nodes = [Node("system", {"cpu": "1", "memory": "1Gi"}, {label: "zone-of-launcher", "pool": "system"})]
    nodes += [Node(f"node-{n}", room, {label: f"zone-{n}"}) for n in range(2)]
    sim = simulate([*podsim.read(generate(words)), SECRET], image={**image, "/srv/show_location.py": program},
                   variables={"HOME": "/home/farandole"}, nodes=nodes, admission="restricted")  # fmt: skip
    sim.wait(90)
    assert sim.result("train") == "Complete", sim.logs()
    found = re.findall(r"(\S+) found (.*)", sim.pod("train-launcher").output)
    assert sorted(found) == [(f"train-worker-{n}", f"* zone-{n}") for n in range(2)], sim.logs()
