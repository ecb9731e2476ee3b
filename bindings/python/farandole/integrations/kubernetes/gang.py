"""Scheduling of all pods together: Kueue's labels and annotations, PodGroups of Volcano and of scheduler-plugins."""

from .document import Item, Map
from .names import metadata
from .options import GANGS

QUEUE = "kueue.x-k8s.io/queue-name"


def scheduler_of(o):
    return o.scheduler_name or GANGS.get(o.gang)


def pod_labels(o):
    return {"scheduling.x-k8s.io/pod-group": o.name} if o.gang == "coscheduling" else {}


def pod_annotations(o):
    made = {"scheduling.k8s.io/group-name": o.name} if o.gang == "volcano" else {}
    for kind in ("required", "preferred"):
        if label := getattr(o, f"{kind}_topology"):
            made[f"kueue.x-k8s.io/podset-{kind}-topology"] = label
    return made


def queue_labels(o):
    return {QUEUE: o.queue} if o.queue else {}


def admits_in_part(o):
    """Whether Kueue may admit the Job with fewer pods. It refuses a minimum that is not below the number of pods."""
    return bool(o.kind == "job" and o.queue and o.elastic and o.min_nodes < o.max_nodes)


def add_partial_admission(o, job):
    """An elastic Job may begin with MIN pods where Kueue has no room for MAX."""
    if admits_in_part(o):
        annotations = Map({"kueue.x-k8s.io/job-min-parallelism": str(o.min_nodes)})
        annotations["kueue.x-k8s.io/job-completions-equal-parallelism"] = "true"
        job["metadata"]["annotations"] = annotations
        job["metadata"].note("annotations", "Kueue may start the job with fewer pods, down to its minimum.")


def pod_group(o):
    """The PodGroup of --gang; None without. Its size is the least number of pods with which the job can begin."""
    if not o.gang:
        return None
    api = {"volcano": "scheduling.volcano.sh/v1beta1", "coscheduling": "scheduling.x-k8s.io/v1alpha1"}[o.gang]
    spec = Map(minMember=o.min_nodes)
    spec.note(
        "minMember",
        "The pods with ranks"
        + ("; an elastic job begins with its minimum." if o.elastic else "; no pod holds a node while others wait."),
    )
    return Item(apiVersion=api, kind="PodGroup", metadata=metadata(o), spec=spec)
