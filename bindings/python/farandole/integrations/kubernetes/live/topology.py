"""`farandole kubernetes topology`: the locations of a cluster's nodes, as a file for FARANDOLE_TOPOLOGY."""

import json
import sys

from .. import values
from ..errors import WrongCombination
from ..location.labels import DEFAULT, location_of
from ..options import Parser
from .kubectl import ApiError, Kubectl, is_named

KUBECTL_MISSING, UNREACHABLE, NO_INPUT, WRONG_DATA = 127, 69, 66, 65
_PAGE = 500  # nodes an answer


def parser():
    made = Parser(
        prog="farandole kubernetes topology",
        description="Prints a line `NODE LOCATION` for each node of the cluster, for FARANDOLE_TOPOLOGY and "
        "`farandole explain --topology`. A location has the values of labels, the widest group of nodes first. Nodes "
        "without the labels are comments.",
        epilog=f"The exit code: 0; {WRONG_DATA} the file has no nodes of Kubernetes; {NO_INPUT} it cannot be read; "
        f"{UNREACHABLE} the API server does not answer; {KUBECTL_MISSING} kubectl is not in PATH.",
    )
    made.add_argument(
        "--labels", default=",".join(DEFAULT), metavar="A,B,...", help=f"the widest first ({', '.join(DEFAULT)})"
    )
    made.add_argument("--selector", metavar="KEY=VALUE", help="only nodes with these labels, as kubectl's -l")
    made.add_argument("--context", help="of kubectl's configuration (the current one)")
    made.add_argument(
        "--from", dest="file", metavar="FILE", help="what `kubectl get nodes -o json` has printed (-: standard input)"
    )
    return made


def _nodes_of_cluster(o):
    kubectl = Kubectl(context=o.context)
    found, more = [], None
    while True:
        query = {"labelSelector": o.selector, "limit": _PAGE, "continue": more}
        nodes, answer = kubectl.get_items("/api/v1/nodes", are_right=lambda nodes: all(map(is_named, nodes)), **query)
        found += nodes
        more = answer["metadata"].get("continue") or None
        if not more:
            return found


def _nodes_of_file(path):
    """ValueError for what is no list of nodes."""
    if path == "-":
        found = json.load(sys.stdin)
    else:
        with open(path) as file:
            found = json.load(file)
    nodes = found.get("items", [found]) if isinstance(found, dict) else None
    if not isinstance(nodes, list):
        raise ValueError("it has no list of nodes")
    for node in nodes:
        if not isinstance(node, dict) or node.get("kind", "Node") != "Node":
            raise ValueError("it has objects that are no nodes")
    return nodes


def lines_of(nodes, labels):
    """The lines of the file: a comment with the labels, then the nodes in the order of their locations."""
    located = sorted((location_of(node, labels), node["metadata"]["name"]) for node in nodes)
    made = [f"# {' / '.join(labels)}"]
    made += [f"{name} {location}" for location, name in located if location]
    return made + [f"# {name} has none of these labels" for location, name in located if not location]


def _print(nodes, labels):
    lines = lines_of(nodes, labels)
    print("\n".join(lines))
    if all(line.startswith("#") for line in lines):
        what = "no node has any of the labels" if nodes else "there is no node"
        print(f"farandole kubernetes topology: warning: {what}; --labels names others", file=sys.stderr)


def _labels_of(text):
    labels = text.split(",")
    for label in labels:
        if not values.is_key(label):
            raise WrongCombination(f"--labels: '{label}' is no label of nodes; write A,B without spaces")
    return labels


def main(words):
    o = parser().parse_args(words)
    labels = _labels_of(o.labels)
    for option in ("selector", "context"):
        if o.file and getattr(o, option) is not None:
            raise WrongCombination(f"--{option} with --from: the nodes are those of the file; leave one out")
    try:
        nodes = _nodes_of_file(o.file) if o.file else _nodes_of_cluster(o)
        _print(nodes, labels)
        return 0
    except FileNotFoundError as error:
        text, code = (f"--from {o.file}: {error.strerror}", NO_INPUT) if o.file else (error, KUBECTL_MISSING)
    except ApiError as error:
        text, code = error, UNREACHABLE
    except (ValueError, RecursionError) as error:
        text, code = f"{f'--from {o.file}' if o.file else 'the API server'}: {error}", WRONG_DATA
    except OSError as error:
        if not o.file or error.filename is None:
            raise  # standard output
        text, code = f"--from {o.file}: {error.strerror}", NO_INPUT
    print(f"farandole kubernetes topology: {text}", file=sys.stderr)
    return code
