"""Tests of the manifests that `gen` prints for operators: RayJob, TrainJob, and the versions that they name."""

import re

import pytest
from farandole.integrations.kubernetes import generate
from kinds_of_jobs import AFTER, KINDS
from manifest_checks import generated, only, pod_of, pods_of


def test_k4_a_rayjobs_probes_need_only_python_and_its_submitter_is_restricted():
    spec = only(generated(f"rayjob --nnodes 2 {AFTER}"), "RayJob")["spec"]
    for pod in pods_of(spec["rayClusterSpec"]):
        for probe in ("readinessProbe", "livenessProbe"):
            words = pod["spec"]["containers"][0][probe]["exec"]["command"]
            assert words[0] == "python"
            compile(words[-1], "probe", "exec")
    submitter = pod_of(spec["submitterPodTemplate"])["spec"]
    assert submitter["securityContext"]["runAsNonRoot"] and submitter["securityContext"]["seccompProfile"]
    assert submitter["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "command" not in submitter["containers"][0]  # KubeRay sets it


def test_a_trainjobs_runtime_belongs_to_its_namespace_unless_the_cluster_is_to_share_it():
    own = generated(f"trainjob --namespace ml {AFTER}")
    assert only(own, "TrainingRuntime")["metadata"]["namespace"] == "ml"
    assert only(own, "TrainJob")["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    shared = generated(f"trainjob --namespace ml --cluster-runtime {AFTER}")
    runtime = only(shared, "ClusterTrainingRuntime")["metadata"]
    assert runtime["name"] == "ml-train-runtime" and "namespace" not in runtime  # no two namespaces share the name
    reference = only(shared, "TrainJob")["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == ("ClusterTrainingRuntime", "ml-train-runtime")


def test_the_names_of_a_trainjobs_jobs_are_short_enough_for_trainer_2_4():
    (job,) = only(generated(f"trainjob {AFTER}"), "TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]
    assert len(job["name"]) < 20


@pytest.mark.parametrize("kind", KINDS)
def test_each_manifest_says_for_which_versions_it_is(kind):
    first = " ".join(generate(f"{KINDS[kind]} {AFTER}".split()).split("\n---")[0].replace("#", "").split())
    assert re.search(
        r"For (any supported )?(Kubernetes|JobSet|LeaderWorkerSet|MPI|Training|Kubeflow|KubeRay|Katib)", first
    )
