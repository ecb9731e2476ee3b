"""Tests of the kustomize components: base and components together are what `gen` prints with their options."""

import importlib.util
import os

import pytest
from farandole.integrations.kubernetes.document import load
from manifest_checks import KUBERNETES, kustomize

SPEC = importlib.util.spec_from_file_location("regenerate", KUBERNETES / "regenerate.py")
regenerate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(regenerate)
TOGETHER = [["kueue", "monitoring", "read-only-root", "spot"], ["volcano", "spot", "read-only-root", "monitoring"]]


def settled(place):
    """The same with lists of named items in the order of their names: that of a merged list is kustomize's own."""
    if isinstance(place, dict):
        return {key: settled(entry) for key, entry in place.items()}
    if isinstance(place, list):
        items = [settled(entry) for entry in place]
        if all(isinstance(one, dict) and "name" in one for one in items):
            return sorted(items, key=lambda one: one["name"])
        return items
    return place


def with_components(names, folder):
    """The documents that kustomize makes of the base and these components."""
    k8s = os.path.relpath(KUBERNETES / "k8s", folder)
    paths = ", ".join(f"{k8s}/components/{name}" for name in names)
    (folder / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources: [{k8s}/base]\ncomponents: [{paths}]\n"
    )
    return {(one["kind"], one["metadata"]["name"]): settled(one) for one in load(kustomize(folder))}


def test_the_components_are_what_regenerate_writes():
    for path, text in regenerate.components():
        assert path.read_text() == text, f"{path}: python examples/kubernetes/regenerate.py"


@pytest.mark.parametrize(
    "name, options",
    [
        ("eks-spot", "--nnodes 1:2 --spot"),
        ("eks-efa", "--instance-type p4d.24xlarge --nproc-per-node gpu --efa all"),
        ("generic", "--nnodes 4"),
    ],
)
def test_the_job_of_an_overlay_is_what_gen_prints_with_its_options(name, options):
    made = list(load(kustomize(KUBERNETES / "k8s" / "overlays" / name)))
    wanted = regenerate.with_options(options.split())
    for one in (one for one in made if one["kind"] in ("Job", "PodDisruptionBudget")):
        expected = wanted[one["kind"], "train"]
        if one["kind"] == "Job":  # the registry is the overlay's own
            expected["spec"]["template"]["spec"]["containers"][0]["image"] = one["spec"]["template"]["spec"][
                "containers"
            ][0]["image"]
        assert settled(one) == settled(expected)


@pytest.mark.parametrize("names", [*([name] for name in regenerate.COMPONENTS), *TOGETHER], ids=" ".join)
def test_the_base_with_components_is_what_gen_prints_with_their_options(names, tmp_path):
    options = [word for name in names for word in regenerate.COMPONENTS[name]]
    wanted = {key: settled(one) for key, one in regenerate.with_options(options).items()}
    made = with_components(names, tmp_path)
    assert made.keys() == wanted.keys()
    for key, one in made.items():
        assert one == wanted[key]
