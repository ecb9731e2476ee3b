"""The versions of Kubernetes and of the operators that the manifests are written for, and what to do with others."""

_KUBERNETES = "Kubernetes 1.31 or later, where podFailurePolicy and successPolicy are on."
_OTHERS = "`kubectl apply --dry-run=server` names fields that another version does not have."
_OF = {
    "job": _KUBERNETES,
    "jobset": f"JobSet 0.6 or later (jobset.x-k8s.io/v1alpha2, whose failurePolicy has rules). {_KUBERNETES}",
    "statefulset": "any supported Kubernetes.",
    "deployment": "any supported Kubernetes.",
    "lws": "LeaderWorkerSet v1 (leaderworkerset.x-k8s.io/v1).",
    "mpijob": "MPI Operator 0.8 (kubeflow.org/v2beta1). Before 0.5 there is no launcherCreationPolicy: remove it, and "
    "give more --max-restarts.",
    "pytorchjob": "Training Operator 1.9 (kubeflow.org/v1). Kubeflow Trainer v2 has no PyTorchJob: use `gen trainjob`.",
    "tfjob": "Training Operator 1.9 (kubeflow.org/v1). Kubeflow Trainer v2 has no TFJob: use `gen trainjob`.",
    "trainjob": "Kubeflow Trainer 2.2 and 2.3 (trainer.kubeflow.org/v1alpha1). The number of processes stands in the "
    "TrainJob, because 2.2 removed it from the runtime's torch policy; the names of its jobs have less than 20 "
    "characters, as 2.4 wants.",
    "rayjob": "KubeRay 1.7 (ray.io/v1).",
    "katib": "Katib 0.19 (kubeflow.org/v1beta1).",
}


def of(o):
    """One sentence for the header of a manifest."""
    text = _OF[o.kind]
    if o.kind == "katib" and o.trial != "job":
        text += " Its trials: " + _OF[o.trial]
    return f"For {text} {_OTHERS}" if o.kind not in ("statefulset", "deployment") else f"For {text}"
