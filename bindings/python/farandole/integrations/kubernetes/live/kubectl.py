"""kubectl as the way to the API server: it has the user's configuration and credentials. Paths are those of the API."""

import json
import os
import re
import shutil
import subprocess
from urllib.parse import urlencode

_OWN_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"  # of the pod that this process runs in
_SHORT_S = 30
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


class Kubectl:
    def __init__(self, namespace=None, context=None):
        self.program = shutil.which("kubectl")
        if not self.program:
            raise FileNotFoundError("kubectl is not in PATH; install it, and try `kubectl get pods`")
        self._common = ["--context", context] if context else []
        self.namespace = namespace or self._configured_namespace()

    def _configured_namespace(self):
        words = ["config", "view", "--minify", "-o", "jsonpath={..namespace}"]
        done = subprocess.run([self.program, *words, *self._common], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
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
        done = subprocess.run(self.words(path, _SHORT_S, **query), capture_output=True, text=True)
        if done.returncode:
            raise error_of(done.stderr)
        return json.loads(done.stdout)

    def text(self, path, **query):
        """The text at that path, such as a log."""
        done = subprocess.run(self.words(path, _SHORT_S, **query), capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise error_of(done.stderr)
        return done.stdout

    def stream(self, path, limit_s, **query):
        """A process that prints the answer line by line. The caller ends it and waits for it."""
        return subprocess.Popen(
            self.words(path, limit_s, **query),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            bufsize=1,
        )
