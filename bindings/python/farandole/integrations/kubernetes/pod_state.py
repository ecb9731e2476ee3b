"""The state of a pod as kubectl shows it: its place in the job, its state, its exit code, and their meaning."""

import re

FAILED = 1


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


def job_code(pods):
    """The job's exit code: the first, in rank order, that another rank did not cause; None while a pod runs."""
    codes = [exit_code(pod) for pod in pods]
    if not pods or any(code is None for code in codes):
        return None
    bad = [code for code in codes if code]
    own = [code for code in bad if code not in (202, 203)]
    return (own or bad or [0])[0]
