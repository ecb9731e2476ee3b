"""kubectl as the way to the API server: it has the user's configuration and credentials. Paths are those of the API."""

import json
import math
import os
import re
import shutil
import subprocess
import threading
import time
from urllib.parse import urlencode

_OWN_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"  # of the pod that this process runs in
_SHORT_S = 30  # of one request
_LATE_S = 2  # of one after the limit of the command, such as for the reason why a pod waits
_END_S = 2  # for kubectl to end after the limit of its request
_SHOWN = 80  # characters of an answer in an error
# The output of kubectl. It is UTF-8 whatever the locale.
_TEXT = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "errors": "replace"}
# What kubectl tries where its configuration names no cluster.
_NO_CLUSTER = "The connection to the server localhost:8080 was refused"
# What it writes where its configuration is at fault, and where the program that gives it credentials is.
_UNUSABLE = re.compile(
    r"error: (context .* does not exist|You must be logged in|error loading config file|invalid configuration)"
    r"|Unable to connect to the server: tls: failed to verify certificate"
)
_NO_CREDENTIALS = "Unable to connect to the server: getting credentials"
_FIRST_WORDS = ("Error from server", "error: ", "Unable to connect", "The connection to the server")


class ApiError(RuntimeError):
    """An answer of the API server, or of kubectl, that is an error. `reason`: NotFound, Forbidden, Expired, ...;
    NoCluster where kubectl's configuration does not suffice, NoCredentials where the program that logs in fails, and ""
    where the server could not be reached."""

    def __init__(self, text, reason=""):
        super().__init__(text)
        self.reason = reason

    @property
    def is_final(self):
        """Whether the same request would fail again."""
        return self.reason in (
            "NotFound",
            "Forbidden",
            "Unauthorized",
            "BadRequest",
            "Invalid",
            "MethodNotAllowed",
            "NoCluster",
        )

    @property
    def is_of_all_requests(self):
        """Whether every other request would fail too."""
        return self.reason in ("NoCluster", "Unauthorized")


def error_of(text):
    """The error that kubectl wrote. Warnings may stand before its line, and hints after it."""
    lines = text.strip().splitlines() or ["kubectl ended without a message"]
    text = next((line for line in reversed(lines) if line.startswith(_FIRST_WORDS)), lines[-1])
    if text.startswith(_NO_CLUSTER):
        return ApiError(
            "kubectl is configured for no cluster: `kubectl config get-contexts` shows those that there are; "
            "for EKS `aws eks update-kubeconfig --name CLUSTER` adds one",
            "NoCluster",
        )
    if _UNUSABLE.match(text):
        return ApiError(text.removeprefix("error: "), "NoCluster")
    if text.startswith(_NO_CREDENTIALS):
        return ApiError(text, "NoCredentials")
    found = re.match(r"Error from server(?: \((\w+)\))?: ", text)
    reason = (found.group(1) or "") if found else ""
    return ApiError(text, "Expired" if reason == "Gone" else reason)


def object_of(text):
    """The JSON object without its nulls, which mean the same as no value. None if the text is none."""
    try:
        found = json.loads(text, object_hook=_without_nulls)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _without_nulls(found):
    return {key: value for key, value in found.items() if value is not None}


def is_named(one):
    """Whether this is an object of Kubernetes, with a name."""
    if not isinstance(one, dict) or not all(isinstance(one.get(key, {}), dict) for key in ("spec", "status")):
        return False
    metadata = one.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def wrong_answer(path, text):
    """The ApiError for an answer that Kubernetes does not give."""
    start = " ".join(text[: 4 * _SHOWN].split())[:_SHOWN] or "nothing"
    return ApiError(
        f"the answer to {path} is not that of an API server: {start!r}; a proxy may have sent it: "
        "`kubectl config view --minify` shows the server's address"
    )


class Kubectl:
    """Requests of several threads. After `limit_s` each has _LATE_S, and none is sent once one was not answered."""

    def __init__(self, namespace=None, context=None, limit_s=None):
        self._limit_s = limit_s
        self._ends = math.inf if limit_s is None else time.monotonic() + limit_s
        self._has_failed_late = False
        self._running, self._lock = set(), threading.Lock()
        self.program = shutil.which("kubectl")
        if not self.program:
            raise FileNotFoundError("kubectl is not in PATH; install it, and try `kubectl get pods`")
        self._common = ["--context", context] if context else []
        self.namespace = namespace or self._configured_namespace()

    def _configured_namespace(self):
        words = ["config", "view", "--minify", "-o", "jsonpath={..namespace}"]
        code, output, _ = self._run([self.program, *words, *self._common], self._seconds())
        if code == 0 and output.strip():
            return output.strip()
        if os.path.exists(_OWN_NAMESPACE):
            with open(_OWN_NAMESPACE) as file:
                return file.read().strip()
        return "default"

    def path(self, resource, group="", version="v1"):
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        return f"{root}/namespaces/{self.namespace}/{resource}"

    def words(self, path, limit_s, **query):
        """The command that prints the answer to one request. It ends after `limit_s`, even if the connection hangs."""
        query = {key: value for key, value in query.items() if value is not None}
        whole = f"{path}?{urlencode(query)}" if query else path
        return [self.program, "get", "--raw", whole, f"--request-timeout={limit_s}s", *self._common]

    def get(self, path, **query):
        """The object at that path. ApiError if the server answers with an error or cannot be reached."""
        text = self.text(path, **query)
        found = object_of(text)
        if found is None:
            raise wrong_answer(path, text)
        return found

    def get_named(self, path, **query):
        """The object at that path, which has a name."""
        found = self.get(path, **query)
        if not is_named(found):
            raise wrong_answer(path, json.dumps(found))
        return found

    def get_items(self, path, key="items", are_right=lambda items: True, **query):
        """(the objects of the list at that path, the list itself)."""
        found = self.get(path, **query)
        items = found.get(key, [] if str(found.get("kind", "")).endswith("List") else None)
        if not isinstance(items, list) or not all(isinstance(one, dict) for one in items) or not are_right(items):
            raise wrong_answer(path, json.dumps(found))
        metadata = found.get("metadata")
        return items, {**found, "metadata": metadata if isinstance(metadata, dict) else {}}

    def text(self, path, **query):
        """The text at that path, such as a log. ApiError as from get()."""
        limit_s = self._seconds()
        try:
            code, output, errors = self._run(self.words(path, math.ceil(limit_s), **query), limit_s)
            if code:
                raise error_of(errors)
        except ApiError as error:
            if time.monotonic() > self._ends and not error.reason:
                self._has_failed_late = True
            raise
        return output

    def stream(self, path, limit_s, **query):
        """A process that prints the answer line by line. The caller ends it and waits for it."""
        return subprocess.Popen(self.words(path, limit_s, **query), bufsize=1, **_TEXT)

    def end_requests(self):
        """Ends the requests of all threads but streams. They raise ApiError."""
        with self._lock:
            for process in self._running:
                process.kill()

    def _seconds(self):
        """How long the next request may take."""
        left = self._ends - time.monotonic()
        if left < _LATE_S and self._has_failed_late:
            raise ApiError(f"the API server has not answered within {self._limit_s:g} s (--limit)")
        return min(_SHORT_S, max(left, _LATE_S))

    def _run(self, words, limit_s):
        """(exit code, output, errors) of kubectl. ApiError if it does not end, such as a program that logs in."""
        with subprocess.Popen(words, **_TEXT) as process:
            with self._lock:
                self._running.add(process)
            try:
                output, errors = process.communicate(timeout=limit_s + _END_S)
            except subprocess.TimeoutExpired:
                raise ApiError(f"kubectl has not ended within {limit_s + _END_S:.0f} s") from None
            finally:
                process.kill()
                with self._lock:
                    self._running.discard(process)
        return process.returncode, output, errors
