"""The object that controls a job's pods, and what its conditions say: complete, failed, suspended, or still running."""

from .kubectl import ApiError

COMPLETE, FAILED, SUSPENDED, RUNNING = "complete", "failed", "suspended", "still running"
# The exit codes of `logs` and `status`. A failed job ends with the code of the pod that failed first.
CODES = {COMPLETE: 0, FAILED: 1, SUSPENDED: 76, RUNNING: 75}

# resource, group, version; outer objects first: a TrainJob makes a JobSet of the same name.
KINDS = (
    ("trainjobs", "trainer.kubeflow.org", "v1alpha1"),
    ("experiments", "kubeflow.org", "v1beta1"),
    ("pytorchjobs", "kubeflow.org", "v1"),
    ("tfjobs", "kubeflow.org", "v1"),
    ("mpijobs", "kubeflow.org", "v2beta1"),
    ("rayjobs", "ray.io", "v1"),
    ("jobsets", "jobset.x-k8s.io", "v1alpha2"),
    ("leaderworkersets", "leaderworkerset.x-k8s.io", "v1"),
    ("jobs", "batch", "v1"),
    ("statefulsets", "apps", "v1"),
    ("deployments", "apps", "v1"),
)


def find(kubectl, name):
    """(path of its collection, the object) that `gen` made under that name; None if there is none.

    ApiError if the server cannot be reached, or if there is none and the rights for some kinds are missing."""
    groups = {group.get("name") for group in kubectl.get_items("/apis", "groups")[0]}
    refused = []
    for resource, group, version in KINDS:
        if group not in groups:
            continue
        path = kubectl.path(resource, group, version)
        try:
            return path, kubectl.get_named(f"{path}/{name}")
        except ApiError as error:
            if error.reason == "Forbidden":
                refused.append(resource)
            elif error.reason != "NotFound":
                raise
    if refused:
        raise ApiError(f"there is no object '{name}' among those that may be read; not readable: {', '.join(refused)}")
    return None


def of(controller):
    """(COMPLETE, FAILED, SUSPENDED or RUNNING, the reason) of an object of one of the KINDS."""
    status, spec = controller.get("status") or {}, controller.get("spec") or {}
    true = {one.get("type"): one for one in status.get("conditions") or [] if one.get("status") == "True"}
    for words, state in ((("Failed",), FAILED), (("Complete", "Completed", "Succeeded"), COMPLETE)):
        for word in words:
            if word in true:
                return state, _reason(true[word])
    if controller.get("kind") == "RayJob":
        return _of_ray(status, spec)
    if "Suspended" in true or spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"):
        return SUSPENDED, _reason(true.get("Suspended", {})) or "it is suspended; Kueue, or who suspended it, starts it"
    return RUNNING, ""


def _of_ray(status, spec):
    """jobStatus is that of one attempt. It has ended before KubeRay knows whether there will be another one."""
    attempt, whole = status.get("jobStatus", ""), status.get("jobDeploymentStatus", "")
    if whole == "Complete" and attempt == "SUCCEEDED":
        return COMPLETE, ""
    if whole in ("Complete", "Failed", "ValidationFailed"):
        return FAILED, status.get("message") or attempt
    if whole in ("Suspended", "Suspending") or (not whole and spec.get("suspend")):
        return SUSPENDED, ""
    return RUNNING, ""


def _reason(condition):
    return ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
