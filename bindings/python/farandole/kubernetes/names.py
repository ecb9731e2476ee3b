"""Names and labels by which the objects of a job belong together."""

from .document import Map

NAME = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"


def labels(o, **more):
    return Map({NAME: "farandole", INSTANCE: o.name, **more, **o.label})


def selector(o):
    return Map({INSTANCE: o.name})


def metadata(o, name=None, **more):
    made = Map(name=name or o.name)
    made.add("namespace", o.namespace)
    made["labels"] = labels(o, **more)
    return made


def account(o):
    return o.service_account or o.name
