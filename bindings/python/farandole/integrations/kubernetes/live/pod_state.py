"""The state of a pod as kubectl shows it: its place in the job, its state, its exit code, and their meaning."""

import re

FAILED = 1


def uid(pod):
    """What a pod does not share with another one of its name, such as its successor in a StatefulSet."""
    return pod["metadata"].get("uid", pod["metadata"]["name"])


def _trial_of(pod):
    """The name of the trial of Katib that the pod belongs to; each trial numbers its pods from 0."""
    return pod["metadata"].get("labels", {}).get("katib.kubeflow.org/trial", "")


def index_of(pod):
    """The sort key of pods: their trial, launcher or master first, then their index, then their name."""
    labels, name, trial = pod["metadata"].get("labels", {}), pod["metadata"]["name"], _trial_of(pod)
    role = labels.get("training.kubeflow.org/job-role") or labels.get("training.kubeflow.org/replica-type") or ""
    first = 0 if role in ("launcher", "master", "chief") or labels.get("ray.io/node-type") == "head" else 1
    for key in (
        "batch.kubernetes.io/job-completion-index",
        "apps.kubernetes.io/pod-index",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "training.kubeflow.org/replica-index",
    ):
        if labels.get(key, "").isdigit():
            return (trial, first, int(labels[key]), "")
    ordinal = re.search(r"-(\d+)\Z", name)
    return (trial, first, int(ordinal.group(1)), "") if ordinal else (trial, first, 0, name)


def short_name(pod):
    """`0` for a pod with an index, `TRIAL/0` for one of a trial, else its own name."""
    trial, first, number, name = index_of(pod)
    if name or not first:
        return pod["metadata"]["name"]
    return f"{trial}/{number}" if trial else str(number)


def _status(pod):
    """The status of the container with the ranks. Statuses are sorted by name: an added container may be first."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    name = container_of(pod)
    return next((one for one in statuses if one.get("name") == name), statuses[0] if statuses else {})


def _container_state(pod):
    return _status(pod).get("state", {})


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
        return f"ended with {code}", "" if code == 0 else _end_by_the_node(pod) or _meaning(code, reason)
    if pod["metadata"].get("deletionTimestamp"):
        return "ending", "it has received SIGTERM and is in its grace period"
    if pod.get("status", {}).get("phase") == "Failed":
        return "failed", _end_by_the_node(pod)
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


def _end_by_the_node(pod):
    """Why the kubelet ended or refused the whole pod, such as an eviction; "" if the container ended by itself."""
    status = pod.get("status", {})
    return ": ".join(filter(None, (status.get("reason"), " ".join(status.get("message", "").split()))))


def _unscheduled(pod):
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("message") or condition.get("reason")
    return None


def restarts(pod):
    """How often the pod's container has been started again."""
    return _status(pod).get("restartCount", 0)


def container_of(pod):
    """The name of the container with the ranks: the one that an annotation names, as injectors of sidecars write it, or
    the first one."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    names = [one.get("name") for one in pod.get("spec", {}).get("containers") or statuses]
    named = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    return named if named in names else names[0] if names else None


# Katib redirects the output of a trial's first pod to a file. Its collector prints the lines, with klog's header.
_COLLECTOR = "metrics-logger-and-collector"
_KLOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^ ]+:\d+\] ")


def _is_collected(pod):
    return any(one.get("name") == _COLLECTOR for one in pod.get("spec", {}).get("containers") or [])


def container_with_log(pod):
    """The name of the container that prints what the ranks print."""
    return _COLLECTOR if _is_collected(pod) else container_of(pod)


def log_has_ended(pod):
    statuses = pod.get("status", {}).get("containerStatuses") or []
    collector = next((one for one in statuses if _is_collected(pod) and one.get("name") == _COLLECTOR), None)
    return "terminated" in collector.get("state", {}) if collector else exit_code(pod) is not None


def line_of_ranks(pod, line):
    """A line of that container's log as the ranks printed it."""
    return _KLOG.sub("", line, count=1) if _is_collected(pod) and _KLOG.match(line) else line


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
