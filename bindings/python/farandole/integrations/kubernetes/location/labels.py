"""From the labels of a node to its location in the network: names from the widest group of nodes to the narrowest."""

import re

ZONE = "topology.kubernetes.io/zone"
DEFAULT = (ZONE, *(f"topology.k8s.aws/network-node-layer-{n}" for n in (1, 2, 3)))
UNNAMED = "-"  # the name of a level whose label the node lacks, where a narrower level has one

_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def location_of(node, labels):
    """The location of a node, an object of the API, such as zone-a/nn-1/nn-2; "" if it has none of the labels.

    ValueError for an object that is no node.
    """
    about = node.get("metadata") if isinstance(node, dict) else None
    if not isinstance(about, dict) or not isinstance(about.get("name"), str):
        raise ValueError("it is no node: metadata.name is missing")
    has = about.get("labels") or {}
    names = [has.get(label) or UNNAMED for label in labels] if isinstance(has, dict) else []
    for label, name in zip(labels, names):
        if name != UNNAMED and not (isinstance(name, str) and _VALUE.fullmatch(name)):
            raise ValueError(f"the value of {label} is {name!r}, which no label has")
    while names and names[-1] == UNNAMED:
        names.pop()
    return "/".join(names)
