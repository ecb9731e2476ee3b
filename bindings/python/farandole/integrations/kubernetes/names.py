"""Names and labels that connect the objects of a job."""

from .document import Map

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"  # in a job of Deployments: leader or worker; in a RayJob: worker
RESERVED = (INSTANCE, COMPONENT)  # selectors name them


def labels(o, **more):
    return Map({NAME: "farandole", INSTANCE: o.name, **more, **o.label})


def selector(o, role=None):
    return Map({INSTANCE: o.name, **({COMPONENT: role} if role else {})})


def metadata(o, name=None, **more):
    made = Map(name=name or o.name)
    made.add("namespace", o.namespace)
    made["labels"] = labels(o, **more)
    return made


def account(o):
    return o.service_account or o.name
