"""The state of a pod as kubectl shows it: its place in the job, its state, its exit code, and their meaning."""

import re

FAILED = 1


def uid(pod):
    """What a pod does not share with another one of its name, such as its successor in a StatefulSet."""
    return pod["metadata"].get("uid", pod["metadata"]["name"])


def index_of(pod):
    """The sort key of pods: launcher or master first, then their index, then their name."""
    labels, name = pod["metadata"].get("labels", {}), pod["metadata"]["name"]
    role = labels.get("training.kubeflow.org/job-role") or labels.get("training.kubeflow.org/replica-type") or ""
    first = 0 if role in ("launcher", "master", "chief") or labels.get("ray.io/node-type") == "head" else 1
    for key in (
        "batch.kubernetes.io/job-completion-index",
        "apps.kubernetes.io/pod-index",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "training.kubeflow.org/replica-index",
    ):
        if labels.get(key, "").isdigit():
            return (first, int(labels[key]), "")
    ordinal = re.search(r"-(\d+)\Z", name)
    return (first, int(ordinal.group(1)), "") if ordinal else (first, 0, name)


def short_name(pod):
    """`0` for a pod with an index, else its own name."""
    first, number, name = index_of(pod)
    return name or (str(number) if first else pod["metadata"]["name"])


def _container_state(pod):
    states = pod.get("status", {}).get("containerStatuses") or []
    return states[0].get("state", {}) if states else {}


def exit_code(pod):
    """The exit code of the pod's container; None while it runs."""
    ended = _container_state(pod).get("terminated")
    if ended:
        return ended.get("exitCode", FAILED)
    phase = pod.get("status", {}).get("phase")
    return {"Succeeded": 0, "Failed": FAILED}.get(phase)


def state(pod):
    """One word, and the reason why the pod does not run. The reason is None if only events contain it."""
    current = _container_state(pod)
    waiting, ended = current.get("waiting"), current.get("terminated")
    if ended:
        reason = ended.get("reason", "")
        code = ended.get("exitCode")
        return f"ended with {code}", "" if code == 0 else _meaning(code, reason)
    if pod["metadata"].get("deletionTimestamp"):
        return "ending", "it has received SIGTERM and is in its grace period"
    if pod.get("status", {}).get("phase") == "Failed":
        return "failed", pod["status"].get("message") or pod["status"].get("reason") or ""
    if waiting and waiting.get("reason") != "ContainerCreating":
        return "waiting", ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    if waiting or pod.get("status", {}).get("phase") == "Pending":
        return "waiting", _unscheduled(pod)
    return "running", ""


_MEANINGS = {
    64: "wrong usage",
    70: "a bug",
    78: "bad configuration",
    137: "killed, perhaps out of memory",
    143: "preempted, state saved",
    200: "not all ranks met in time",
    201: "too few ranks were left",
    202: "another rank was lost",
    203: "the ranks changed; a new start is wanted",
    204: "the network failed",
}


def _meaning(code, reason):
    if reason == "OOMKilled":
        return "out of memory: give more --memory"
    return _MEANINGS.get(code, reason if reason != "Error" else "")


def _unscheduled(pod):
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("message") or condition.get("reason")
    return None


def restarts(pod):
    """How often the pod's container has been started again."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    return statuses[0].get("restartCount", 0) if statuses else 0


def container_of(pod):
    """The name of the container with the ranks: the first one."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    containers = pod.get("spec", {}).get("containers") or []
    return containers[0]["name"] if containers else statuses[0].get("name") if statuses else None


def has_started(pod):
    """Whether the pod's container runs or has run."""
    current = _container_state(pod)
    return "running" in current or "terminated" in current or restarts(pod) > 0


def newest(pods):
    """The newest pod of each index, in order of rank."""
    by_age = sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]))
    found = {index_of(pod): pod for pod in by_age}
    return [found[key] for key in sorted(found)]


def _order_of_failure(pod):
    """Pods that another rank ended, and those that the controller ended, come last; then the earliest end counts."""
    ended = _container_state(pod).get("terminated") or {}
    is_ended = bool(pod["metadata"].get("deletionTimestamp"))
    return exit_code(pod) in (202, 203), is_ended, ended.get("finishedAt", ""), index_of(pod)


def failures(pods):
    """The pods that have failed, the cause first."""
    return sorted((pod for pod in newest(pods) if exit_code(pod)), key=_order_of_failure)


def job_code(pods):
    """The exit code of a job without a controller: of the pod that failed first; None while a pod runs."""
    if not pods or any(exit_code(pod) is None for pod in newest(pods)):
        return None
    failed = failures(pods)
    return exit_code(failed[0]) if failed else 0
