"""A workload and its pods, as the functions of controllers describe them."""

import copy
import uuid
from dataclasses import dataclass, field


@dataclass
class PodPlan:
    """One pod as its controller would create it. `stem` is its name; with `random` the controller adds a random
    suffix."""

    stem: str
    template: dict  # the pod's spec
    labels: dict
    annotations: dict = field(default_factory=dict)
    env: list = field(default_factory=list)  # variables that the controller adds to every container
    hostname: str = ""  # empty: the pod's name
    subdomain: str = ""
    namespace: str = "default"
    random: bool = False
    index: int = 0
    role: str = ""  # replica type: Master, Worker, launcher...
    restart: str = "Always"
    exit_codes: bool = False  # its controller replaces it after codes from 128 on; other codes are final
    waits_for: str = ""  # a host name that an init container of the controller resolves first
    default_command: tuple = ()  # instead of the image's own
    files: dict = field(default_factory=dict)  # path -> (text, mode): files that the controller mounts
    with_service: bool = False  # the controller makes a headless service of this pod's name


@dataclass
class Workload:
    """The pods of one object, and the rules by which failed ones are replaced."""

    kind: str
    name: str
    namespace: str
    pods: list
    services: list = field(default_factory=list)  # (name, selector labels, publish not ready): headless services
    job: dict = field(default_factory=dict)  # a Job's spec, for job_rules
    decides: str = ""  # the role whose success ends it; empty: all pods
    first_decides: bool = False  # the first pod that succeeds ends it
    in_order: bool = False  # the next pod starts when the one before is ready
    recreate_all: bool = False  # after the loss of a pod its whole group is recreated
    max_restarts: int = 0  # of all pods together


def meta_of(document):
    meta = document.get("metadata", {})
    return meta.get("name", ""), meta.get("namespace", "default")


def plan_of(stem, template, namespace, labels, **more):
    meta, spec = template.get("metadata", {}), copy.deepcopy(template["spec"])
    more.setdefault("hostname", spec.get("hostname", ""))
    more.setdefault("subdomain", spec.get("subdomain", ""))
    more.setdefault("restart", spec.get("restartPolicy", "Always"))
    annotations = {**meta.get("annotations", {}), **more.pop("annotations", {})}
    return PodPlan(stem, spec, {**meta.get("labels", {}), **labels}, annotations, namespace=namespace, **more)


def uid_of(*words):
    """A uid in the usual format; here it is the same for the same object."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(words)))


def variables(**pairs):
    return [{"name": name, "value": str(value)} for name, value in pairs.items()]
