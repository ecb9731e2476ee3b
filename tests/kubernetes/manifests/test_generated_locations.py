"""Tests of --locations in generated manifests: which containers have a location, from where, and with which rights."""

import pytest
from farandole.integrations.kubernetes import generate
from farandole.integrations.kubernetes.location.labels import DEFAULT, ZONE
from kinds_of_jobs import AFTER, KINDS
from manifest_checks import SCHEMAS, env_of, faults, generated, only, pod_of, pods_of

FILE = "/farandole-location/topology"
COPIED = {"fieldRef": {"fieldPath": f"metadata.labels['{ZONE}']"}}
NODES = "--locations nodes --namespace ml"
WITHOUT_RANKS = ("launcher", "ray-head", "ray-job-submitter")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def pods_by_ranks(documents):
    """(the pods with ranks, those without)"""
    pods = list(pods_of(documents))
    without = [pod for pod in pods if pod["spec"]["containers"][0]["name"] in WITHOUT_RANKS]
    return [pod for pod in pods if pod not in without], without


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", ["--locations zone", NODES])
def test_every_kind_with_locations_is_valid(kind, words):
    policy = "" if "rayjob" in KINDS[kind] else "--network-policy"
    read_only = "" if any(word in KINDS[kind] for word in ("rayjob", "mpijob")) else "--read-only-root"
    made = generated(f"{KINDS[kind]} {words} {policy} {read_only} --gpus 1 --pvc data:/data {AFTER}")
    assert faults(made, custom=SCHEMAS.is_dir()) == []


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "mpi" not in kind and "mpich" not in kind])
def test_the_zone_is_a_variable_of_the_ranks_alone(kind):
    made = generated(f"{KINDS[kind]} --locations zone {AFTER}")
    with_ranks, without = pods_by_ranks(made)
    assert with_ranks
    for pod in with_ranks:
        assert env_of(pod)["FARANDOLE_LOCATION"] == COPIED and "initContainers" not in pod["spec"]
    for pod in without:
        assert "FARANDOLE_LOCATION" not in env_of(pod)
    assert "ClusterRole" not in {one["kind"] for one in made}  # it needs no right, and no token


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "mpi" in kind])
def test_under_mpirun_the_zone_is_in_a_file_of_the_workers(kind):
    launcher, worker = pods_of(generated(f"{KINDS[kind]} --locations zone {AFTER}"))
    (box,) = worker["spec"]["initContainers"]
    assert box["env"] == [{"name": "FARANDOLE_LOCATION", "valueFrom": COPIED}]
    assert box["args"] == ["--output", FILE, "--location", "$(FARANDOLE_LOCATION)"]
    assert [volume["name"] for volume in worker["spec"]["volumes"]] == ["dshm", "location"]  # and no token
    assert "initContainers" not in launcher["spec"]
    words = " ".join(launcher["spec"]["containers"][0]["args"])
    assert "FARANDOLE_TOPOLOGY" in words and "FARANDOLE_LOCATION" not in words  # the launcher is on another node


@pytest.mark.parametrize("kind", KINDS)
def test_an_init_container_reads_all_levels_and_the_ranks_have_no_token(kind):
    made = generated(f"{KINDS[kind]} {NODES} {AFTER}")
    with_ranks, without = pods_by_ranks(made)
    for pod in without:
        assert "initContainers" not in pod["spec"] and "location" not in str(pod["spec"].get("volumes", ""))
    for pod in with_ranks:
        spec = pod["spec"]
        (box,), main = spec["initContainers"], spec["containers"][0]
        assert box["image"] == main["image"] and env_of(pod)["FARANDOLE_TOPOLOGY"] == FILE
        labels = {one["name"]: one.get("value") for one in box["env"]}["LOCATION_LABELS"]
        assert labels.split(",") == list(DEFAULT)
        assert {"name": "location", "mountPath": "/farandole-location", "readOnly": True} in main["volumeMounts"]
        assert spec["automountServiceAccountToken"] is False
        assert [mount["mountPath"] for mount in main["volumeMounts"]].count(ACCOUNT) == 0
        assert {"name": "location-token", "mountPath": ACCOUNT, "readOnly": True} in box["volumeMounts"]
        assert box["securityContext"] == {  # Pod Security level restricted, with the pod's own settings
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert box["resources"]["requests"].keys() == {"cpu", "memory"} and "memory" in box["resources"]["limits"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", ["", "--service-account s3-reader"])
def test_the_account_of_the_pods_may_get_nodes_and_nothing_else(kind, own):
    made = generated(f"{KINDS[kind]} {NODES} {own} {AFTER}")
    role, binding = only(made, "ClusterRole"), only(made, "ClusterRoleBinding")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    assert role["metadata"]["name"] == binding["metadata"]["name"] == binding["roleRef"]["name"] == "ml-train-location"
    accounts = {pod["spec"]["serviceAccountName"] for pod in pods_by_ranks(made)[0]}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": accounts.pop(), "namespace": "ml"}]
    assert not accounts
    for one in (role, binding):
        assert "namespace" not in one["metadata"]


def test_a_network_policy_lets_the_init_container_reach_the_api_server():
    for words, wanted in ((NODES, [443, 6443]), ("--locations zone", [])):
        policy = only(generated(f"job --nnodes 2 {words} --network-policy {AFTER}"), "NetworkPolicy")
        anywhere = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule][1:]  # the first is DNS
        assert [port["port"] for ports in anywhere for port in ports] == wanted


def test_pods_that_know_their_zones_may_be_in_several():
    affinity = pod_of(generated(f"job --nnodes 2 --locations zone {AFTER}"))["spec"]["affinity"]["podAffinity"]
    (wish,) = affinity.pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert wish["podAffinityTerm"]["topologyKey"] == ZONE and affinity == {}
    affinity = pod_of(generated(f"job --nnodes 2 {NODES} {AFTER}"))["spec"]["affinity"]["podAffinity"]
    assert list(affinity) == ["requiredDuringSchedulingIgnoredDuringExecution"]


def test_the_labels_can_be_chosen():
    box = pod_of(generated(f"job {NODES} --location-labels room,example.com/rack {AFTER}"))["spec"]["initContainers"][0]
    assert {"name": "LOCATION_LABELS", "value": "room,example.com/rack"} in box["env"]


def test_the_first_lines_name_the_versions_and_the_rights():
    def head(words):
        text = generate(f"job --nnodes 2 {words} {AFTER}".split()).split("\n---")[0]
        return " ".join(text.replace("#", "").split())

    assert "which Kubernetes 1.35 or later copies to the pod (1.33 and 1.34 with the feature gate" in head(
        "--locations zone"
    )
    assert "have an administrator apply them once" in head(NODES)
    assert "Locations" not in head("")
