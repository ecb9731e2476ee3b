"""Writes the location of a pod's node into a file that FARANDOLE_TOPOLOGY names: the init container of
`farandole kubernetes gen --locations`.

    python -m farandole.integrations.kubernetes.location --output /farandole-location/topology

The labels of a node are not in its pods, so the program requests the node of FARANDOLE_NODE_NAME from the API server,
with the token of the pod's service account. Without an answer the file has a comment only: the job runs, and the node
has no location.
"""

import argparse
import http.client
import json
import os
import re
import ssl
import sys
import threading
import time
from urllib.parse import quote

from ..output import CANNOT_WRITE, guarded
from .labels import DEFAULT, location_of

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

DEADLINE_S = 30
_ATTEMPT_S = 5  # for each step of a connection
_PAUSE_S = 1
_REFUSALS = 3  # a role that was applied just before may not be in force yet
_LARGEST = 4 << 20  # bytes of an answer; the labels of a node have a few KiB
# The metadata is enough; a server that does not know this form sends the whole node.
_ACCEPTED = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
_RIGHT = "bind the pod's service account to a ClusterRole that may get nodes (`gen --locations nodes` prints both)"


class NoAnswer(Exception):
    """Why there is no location. `is_refusal`: the server refused the request, and would refuse it again."""

    def __init__(self, text, is_refusal=False):
        super().__init__(text)
        self.is_refusal = is_refusal


def _text_of(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise NoAnswer(f"{path}: {getattr(error, 'strerror', None) or error}; {_RIGHT}", True) from None


def _body_of(answer):
    """The body, of which no more than _LARGEST bytes are read."""
    body = answer.read(_LARGEST + 1)
    if len(body) > _LARGEST:
        raise NoAnswer(f"the API server's answer has more than {_LARGEST >> 20} MiB", True)
    return body


def _request(host, port, node, account):
    """The node, as the API server returns it. http.client follows no redirection, and uses no proxy."""
    token = _text_of(os.path.join(account, "token"))
    if not re.fullmatch(r"[!-~]+", token):
        raise NoAnswer(f"{account}/token is empty, or no token", True)
    try:
        trusted = ssl.create_default_context(cafile=os.path.join(account, "ca.crt"))
    except OSError as error:
        raise NoAnswer(f"{account}/ca.crt: {error.strerror or error}", True) from None
    connection = http.client.HTTPSConnection(host, port, timeout=_ATTEMPT_S, context=trusted)
    try:
        headers = {"Authorization": f"Bearer {token}", "Accept": _ACCEPTED}
        connection.request("GET", f"/api/v1/nodes/{quote(node, safe='')}", headers=headers)
        answer = connection.getresponse()
        body = _body_of(answer)
    except ssl.SSLCertVerificationError as error:
        raise NoAnswer(f"the certificate of the API server {host}:{port} is not trusted: {error}", True) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise NoAnswer(
            f"the API server {host}:{port} does not answer ({why}); a NetworkPolicy must let the pod reach it"
        ) from None
    finally:
        connection.close()
    return _node_of(answer.status, body, node)


def _node_of(status, body, node):
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if status == 200 and isinstance(found, dict):
        return found
    said = found.get("message") if isinstance(found, dict) else None
    text = f"the API server answers {status} for node {node}" + (f": {said}" if isinstance(said, str) else "")
    if status in (401, 403):
        raise NoAnswer(f"{text[:500]}; {_RIGHT}", True)
    if status == 200:
        raise NoAnswer(f"the API server's answer for node {node} is no object of JSON", True)
    raise NoAnswer(text[:500], status not in (429, 500, 502, 503, 504))


def _request_until_answered(host, port, node, account, found, failures):
    """Repeats the request until there is an answer, which is appended to `found`, or until the server refuses it."""
    refusals = 0
    while not found:
        try:
            found.append(_request(host, port, node, account))
        except NoAnswer as error:
            failures.append(str(error))
            refusals += error.is_refusal
            if refusals == _REFUSALS:
                return
            time.sleep(_PAUSE_S)


def node_from_server(environment, account=ACCOUNT, deadline_s=DEADLINE_S):
    """The node of this pod; NoAnswer if there is none within the deadline, which also ends a slow answer."""
    node, host = environment.get("FARANDOLE_NODE_NAME"), environment.get("KUBERNETES_SERVICE_HOST")
    if not node:
        raise NoAnswer("FARANDOLE_NODE_NAME is not set; give the container spec.nodeName by the downward API")
    if not host:
        raise NoAnswer("KUBERNETES_SERVICE_HOST is not set: this is no pod of Kubernetes")
    found, failures = [], []
    port = int(environment.get("KUBERNETES_SERVICE_PORT_HTTPS") or environment.get("KUBERNETES_SERVICE_PORT") or 443)
    words = (host, port, node, account, found, failures)
    requesting = threading.Thread(target=_request_until_answered, args=words, daemon=True)
    requesting.start()
    requesting.join(deadline_s)
    if found:
        return found[0]
    if requesting.is_alive() or not failures:
        last = f"; before: {failures[-1]}" if failures else ""
        raise NoAnswer(f"the API server {host}:{port} has not answered within {deadline_s:g} s{last}")
    raise NoAnswer(failures[-1])


def write(path, line):
    """Replaces the file: a container that is started again finds the old text or the new one."""
    temporary = f"{path}.new"
    with open(temporary, "w") as file:
        file.write(f"{line}\n")
    os.replace(temporary, path)


def _line_of(location):
    return f"* {location}" if location else "# this node has no location"


def _one_line(text):
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


def parser():
    made = argparse.ArgumentParser(prog="python -m farandole.integrations.kubernetes.location", allow_abbrev=False)
    made.add_argument("--output", required=True, metavar="FILE", help="for FARANDOLE_TOPOLOGY")
    made.add_argument("--labels", default=",".join(DEFAULT), metavar="A,B,...", help="of the node, the widest first")
    made.add_argument("--location", metavar="TEXT", help="written as it is, without a request; may be empty")
    made.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help=f"({DEADLINE_S})")
    return made


def main(words=None, environment=os.environ, account=ACCOUNT):
    return guarded("farandole location", lambda: _run(words, environment, account))


def _run(words, environment, account):
    o = parser().parse_args(words)
    try:
        location = o.location
        if location is None:
            node = node_from_server(environment, account, o.deadline)
            location = location_of(node, o.labels.split(","))
            if not location:
                print(f"farandole location: warning: the node has none of the labels {o.labels}", file=sys.stderr)
        line = _line_of(location)
    except (NoAnswer, ValueError) as error:
        text = _one_line(error)
        print(f"farandole location: warning: {text}. The job runs without this node's location.", file=sys.stderr)
        line = f"# no location: {text}"
    try:
        write(o.output, line)
    except OSError as error:
        print(f"farandole location: {o.output} cannot be written: {error.strerror}", file=sys.stderr)
        return CANNOT_WRITE
    print(f"farandole location: {line.removeprefix('* ')}", flush=True)
    return 0
