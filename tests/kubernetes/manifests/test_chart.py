"""Tests of `farandole kubernetes chart`: what Helm renders of a chart is what `gen` prints."""

import json
import random
import subprocess

import pytest
from farandole.integrations.kubernetes import WrongCombination
from farandole.integrations.kubernetes.__main__ import main
from farandole.integrations.kubernetes.document import load
from manifest_checks import KUBERNETES, generated, helm

COMMAND = "--image farandole:0.1.0 -- python train.py"
KINDS = {
    "job": "job",
    "jobset": "jobset",
    "statefulset": "statefulset",
    "deployment": "deployment --nnodes 2:4",
    "lws": "lws",
    "mpijob": "mpijob",
    "pytorchjob": "pytorchjob",
    "tfjob": "tfjob",
    "trainjob": "trainjob",
    "rayjob": "rayjob",
    "katib job": "katib --parameter lr:double:0.001:0.1",
    "katib trainjob": "katib --trial trainjob --parameter lr:double:0.001:0.1",
}
# Every value: what a release may set, and the words of `gen` for it.
VALUES = {
    "image": ("other:2", ["--image", "other:2"]),
    "nnodes": (5, ["--nnodes", "5"]),
    "nprocPerNode": (3, ["--nproc-per-node", "3"]),
    "cpus": ("7500m", ["--cpus", "7500m"]),
    "memory": ("48Gi", ["--memory", "48Gi"]),
    "shm": ("5Gi", ["--shm", "5Gi"]),
    "maxRestarts": (9, ["--max-restarts", "9"]),
    "grace": (70, ["--grace", "70"]),
    "runAs": (1234567, ["--run-as", "1234567"]),
    "portBase": (31000, ["--port-base", "31000"]),
    "gpus": (4, ["--gpus", "4"]),
    "deviceClass": ("gpu.nvidia.com", ["--device-class", "gpu.nvidia.com"]),
    "computeDomain": (True, ["--compute-domain"]),
    "efa": (2, ["--efa", "2"]),
    "tcpFallback": (True, ["--tcp-fallback"]),
    "spot": (True, ["--spot"]),
    "zone": ("us-east-1a", ["--zone", "us-east-1a"]),
    "maxRuntimeSeconds": (1209600, ["--max-runtime", "1209600s"]),
    "ttl": (2592000, ["--ttl", "2592000"]),
    "priorityClass": ("high", ["--priority-class", "high"]),
    "queue": ("team", ["--queue", "team"]),
    "requiredTopology": ("topology/rack", ["--required-topology", "topology/rack"]),
    "preferredTopology": ("topology/block", ["--preferred-topology", "topology/block"]),
    "locations": ("nodes", ["--locations", "nodes"]),
    "locationLabels": ("example.com/row,example.com/rack", ["--location-labels", "example.com/row,example.com/rack"]),
    "schedulerName": ("mine", ["--scheduler-name", "mine"]),
    "gang": ("volcano", ["--gang", "volcano"]),
    "serviceAccount": ("s3-reader", ["--service-account", "s3-reader"]),
    "jobKeySecret": ("a-key", ["--job-key-secret", "a-key"]),
    "readOnlyRoot": (True, ["--read-only-root"]),
    "hostNetwork": (True, ["--host-network"]),
    "networkPolicy": (True, ["--network-policy"]),
    "allowEgress": ([443, 5432], ["--allow-egress", "443", "--allow-egress", "5432"]),
    "monitoring": (True, ["--monitoring"]),
    "metricsPort": (9500, ["--metrics-port", "9500"]),
    "jsonLogs": (True, ["--json-logs"]),
    "env": ({"A": "b: {c}", "N": "1"}, ["--env", "A=b: {c}", "--env", "N=1"]),
    "labels": ({"team": "x"}, ["--label", "team=x"]),
    "annotations": ({"a.b/c": "yes"}, ["--annotation", "a.b/c=yes"]),
    "nodeSelector": ({"pool": "p1", "1": "2"}, ["--node-selector", "pool=p1", "--node-selector", "1=2"]),
    "systemSelector": ({"pool": "system"}, ["--system-selector", "pool=system"]),
    "tolerations": (
        [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}, {"key": "c", "operator": "Exists"}],
        ["--toleration", "a=b:NoExecute", "--toleration", "c"],
    ),
    "claims": ([{"claim": "data", "path": "/data"}], ["--pvc", "data:/data"]),
    "readOnlyClaims": ([{"claim": "fixed", "path": "/fixed"}], ["--pvc", "fixed:/fixed:ro"]),
    "newClaims": (
        [{"claim": "one", "path": "/one", "size": "1Gi"}, {"claim": "two", "path": "/two", "size": "2Ti"}],
        ["--new-pvc", "one:/one:1Gi", "--new-pvc", "two:/two:2Ti"],
    ),
    "configMaps": ([{"name": "script", "path": "/script"}], ["--config-map", "script:/script"]),
}
NEEDS = {
    "requiredTopology": "queue",
    "preferredTopology": "queue",
    "allowEgress": "networkPolicy",
    "deviceClass": "gpus",
    "computeDomain": "gpus",
    "tcpFallback": "efa",
    "locationLabels": "locations",
}


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    """chart(line): the folder of the chart that `farandole kubernetes chart LINE` writes; each line once."""
    made = {}

    def write(line):
        if line not in made:
            made[line] = tmp_path_factory.mktemp("chart")
            assert main(["chart", *line.split(), "--directory", str(made[line]), *COMMAND.split()]) == 0
        return made[line]

    return write


def rendered(folder, values, name="train"):
    done = subprocess.run(
        [helm(), "template", name, str(folder), "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise WrongCombination(done.stderr)
    return by_name(load(done.stdout))


def by_name(documents):
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def differences(left, right, path=""):
    """The paths at which two documents differ, with both values."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted({*left, *right}, key=str):
            yield from differences(left.get(key), right.get(key), f"{path}/{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, both in enumerate(zip(left, right)):
            yield from differences(*both, f"{path}/{number}")
    elif left != right:
        yield f"{path}: {left!r}, and gen has {right!r}"


def of_gen(line, values, name="train"):
    kind = line.split()[0]
    words = [word for key, (_, given) in VALUES.items() if key in values for word in given]
    nodes = str(values.get("nnodes", 4 if kind == "deployment" else 1))
    least = values.get("minNodes", 2 if kind == "deployment" else 0)
    size = f"{least}:{nodes}" if least else nodes
    words += ["--nnodes", size, "--name", name]
    command = values.get("command", ["python", "train.py"])
    if "locations" in values:  # in a chart the namespace is the release's, which Helm writes into no object
        words += ["--namespace", "default"]
    made = by_name(generated([*line.split(), "--image", "farandole:0.1.0", *words, "--", *command]))
    for document in made.values():
        document["metadata"].pop("namespace", None)
    return made


def repair(values):
    """Makes most random values ones that `gen` accepts together; the others are to be refused by both."""
    for key, needed in NEEDS.items():
        if key in values and needed not in values:
            del values[key]
    if "gang" in values or "preferredTopology" in values:
        values.pop("requiredTopology", None)
    if "gang" in values:
        values.pop("queue", None)
        values.pop("preferredTopology", None)
    if "hostNetwork" in values:
        values.pop("networkPolicy", None)
        values.pop("allowEgress", None)
    if "computeDomain" in values:
        values["nnodes"] = VALUES["nnodes"][0]


def accepted(line, values):
    """(the documents of `gen`, None), or (None, why it refuses these values)"""
    try:
        return of_gen(line, values), None
    except WrongCombination as error:
        return None, str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_helm_renders_what_gen_prints_for_each_value_and_for_many_together(chart, kind):
    line, compared, refused = KINDS[kind], 0, 0
    folder = chart(line)
    has = json.loads((folder / "values.schema.json").read_text())["properties"]
    draw = random.Random(kind)
    sets = [{}, {key: value for key, (value, _) in VALUES.items() if key in has and key not in ("gang", "hostNetwork")}]
    for _ in range(12):
        keys = draw.sample(sorted(set(VALUES) & set(has)), draw.randint(2, 14))
        sets.append({key: VALUES[key][0] for key in keys})
    for number, values in enumerate(sets):
        if number % 2 and "minNodes" in has:
            values |= {"nnodes": 5, "minNodes": 3}
        if number % 3 == 0:
            odd = number == 0 or not line.startswith("katib")  # gen and Helm refuse it in a search
            values |= {"command": ["python", "-c", "print('a b')"] if odd else ["python", "other.py"]}
        if number % 4 < 3:
            repair(values)
        if "shm" in values:
            values["memory"] = VALUES["memory"][0]  # which must be larger
        if not values.get("monitoring"):
            values.pop("metricsPort", None)  # has a default, and no meaning without
        wanted, why = accepted(line, values)
        if wanted is None:
            print(f"{kind}: refused: {why}")
            refused += 1
            with pytest.raises(WrongCombination):
                rendered(folder, values)
            continue
        compared += 1
        assert list(differences(rendered(folder, values), wanted)) == [], values
    print(f"{kind}: {compared} compared, {refused} refused by both")
    assert compared >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_annotations_of_a_release_replace_the_charts_own(chart, kind):
    of_release = {"labels": {"sidecar.istio.io/inject": "true"}, "annotations": {"karpenter.sh/do-not-disrupt": "2h"}}
    words = "--label sidecar.istio.io/inject=true --annotation karpenter.sh/do-not-disrupt=2h"
    wanted = of_gen(f"{KINDS[kind]} {words}", {})
    assert list(differences(rendered(chart(KINDS[kind]), of_release), wanted)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_zone_of_a_node_is_a_location_in_charts_too(chart, kind):
    wanted = by_name(generated(f"{KINDS[kind]} --locations zone {COMMAND}"))
    assert list(differences(rendered(chart(KINDS[kind]), {"locations": "zone"}), wanted)) == []


@pytest.mark.parametrize(
    "ranks, memory", [(4, "1Gi"), (2, "3500Mi"), (3, "1.5G"), (8, 4294967296), (63, "1Ti"), (5, "9Gi")]
)
def test_shared_memory_that_is_null_is_what_gen_computes_from_the_memory(chart, ranks, memory):
    shown = rendered(chart("job"), {"nprocPerNode": ranks, "memory": memory})["Job", "train"]
    line = f"job --nproc-per-node {ranks} --memory {memory} {COMMAND}"
    ((_, wanted),) = [one for one in by_name(generated(line)).items() if one[0][0] == "Job"]
    (volume,) = shown["spec"]["template"]["spec"]["volumes"]
    assert [volume] == wanted["spec"]["template"]["spec"]["volumes"]


def test_the_shipped_chart_is_what_its_command_writes_and_helm_finds_no_fault(tmp_path):
    folder = KUBERNETES / "helm" / "farandole-job"
    line = (folder / "templates" / "manifest.yaml").read_text().splitlines()[1].removeprefix("#").split()
    assert line[:3] == ["farandole", "kubernetes", "chart"]
    assert main(["chart", "--directory", str(tmp_path), *line[3:]]) == 0
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    for name in names:
        assert (folder / name).read_text() == (tmp_path / name).read_text(), name
    done = subprocess.run([helm(), "lint", "--strict", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "values, why",
    [
        ({"nodes": 3}, "nodes"),
        ({"nnodes": "3"}, "nnodes"),
        ({"command": []}, "command"),
        ({"gang": "yarn"}, "gang"),
        ({"locations": "rack"}, "locations"),
        ({"locations": "zone", "zone": "a"}, "locations zone with zone: all pods run in that zone"),
        ({"locations": "zone", "locationLabels": "a"}, "only `locations nodes` reads labels"),
        ({"locations": "nodes", "locationLabels": "a b"}, "locationLabels"),
        ({"locationLabels": "a"}, "locationLabels without locations: only `locations nodes` reads"),
        ({"memory": "lots"}, "memory"),
        ({"minNodes": 5, "nnodes": 4}, "minNodes is above nnodes"),
        ({"nprocPerNode": 8, "gpus": 4}, "ranks would share a GPU"),
        ({"spot": True, "grace": 300}, "120 s after its notice"),
        ({"minNodes": 4, "nnodes": 4, "queue": "q"}, "minNodes equals nnodes with queue"),
        ({"efa": 1, "env": {"FARANDOLE_TRANSPORT": "auto"}}, "env.FARANDOLE_TRANSPORT with efa: set tcpFallback"),
        ({"requiredTopology": "rack"}, "requiredTopology without queue: Kueue reads it"),
        ({"networkPolicy": True, "hostNetwork": True}, "networkPolicy with hostNetwork"),
        ({"monitoring": True, "metricsPort": 29510}, "metricsPort lies in the job's own ports"),
        ({"monitoring": True, "metricsPort": 65530, "nprocPerNode": 8}, "metricsPort is too high for so many ranks"),
        ({"queue": "a", "labels": {"kueue.x-k8s.io/queue-name": "b"}}, "with queue: both name a queue"),
        ({"memory": 16}, "memory is less than 1 MiB; give Mi or Gi"),
        ({"memory": "4Gi", "shm": "4096Mi"}, "shm leaves nothing of memory"),
        ({"shm": "2Gi"}, "shm leaves nothing of memory"),
        (
            {"zone": "a", "nodeSelector": {"topology.kubernetes.io/zone": "b"}},
            "nodeSelector has topology.kubernetes.io/",
        ),
        ({"env": {"FARANDOLE_PORT_BASE": "1"}}, "env has FARANDOLE_PORT_BASE, which the manifest sets itself"),
        # Helm may name another value as the place of a property's name.
        ({"labels": {"app.kubernetes.io/instance": "x"}}, "app.kubernetes.io/instance"),
    ],
)
def test_wrong_values_are_refused_by_name(values, why):
    with pytest.raises(WrongCombination, match=why):
        rendered(KUBERNETES / "helm" / "farandole-job", values)


@pytest.mark.parametrize("name", ["7-runs", "run.7"])
def test_a_release_whose_name_no_service_may_have_is_refused(name):
    with pytest.raises(WrongCombination, match="begins with a letter"):
        rendered(KUBERNETES / "helm" / "farandole-job", {}, name)


def test_options_become_the_defaults_of_values_or_a_part_of_the_templates(chart):
    folder = chart("job --instance-type p4d.24xlarge --efa all --nproc-per-node gpu --set Job.spec.backoffLimit=7")
    shown = rendered(folder, {})["Job", "train"]["spec"]
    asked = shown["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert asked == {"cpu": "94", "memory": "1056Gi", "nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 4}
    assert shown["template"]["spec"]["nodeSelector"] == {"node.kubernetes.io/instance-type": "p4d.24xlarge"}
    assert shown["backoffLimit"] == 7


@pytest.mark.parametrize(
    "line, why",
    [
        (f"chart job {COMMAND}", "--directory FOLDER is missing"),
        (f"chart job --directory out --namespace ml {COMMAND}", "the namespace is Helm's"),
        (f"chart job --directory /dev/null {COMMAND}", "--directory /dev/null: File exists"),
        (f"chart job --directory out --chart-version 1 {COMMAND}", "--chart-version 1 is no version such as 0.1.0"),
        (f"chart mpijob --implementation mpich --directory out {COMMAND}", "use `gen`"),
        (
            f'chart job --directory out --set Job.metadata.annotations.a="{{{{x}}}}" {COMMAND}',
            "which Helm would evaluate",
        ),
    ],
)
def test_a_chart_that_cannot_be_is_refused(line, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 64
    assert why in capsys.readouterr().err and not list(tmp_path.iterdir())
