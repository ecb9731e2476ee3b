"""A stub of the API server for real kubectl: lists, watches with versions, followed logs, and faults on command."""

import datetime
import json
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

INSTANCE = "app.kubernetes.io/instance"
GROUPS = ("batch", "apps", "kubeflow.org", "jobset.x-k8s.io", "ray.io")


class ApiServer:
    """`put` and `delete` change objects, `write` adds lines to logs. cut() breaks all connections, in the middle of a
    line too; forget() makes old versions unknown (410 Gone); `refuses`: the next so many requests get 503; `tears`: so
    many of the next lines of streams break in their middle, with their connection; `unreachable`: pods whose nodes do
    not answer, so that their logs cannot be read; `answers`: texts by the ends of paths, instead of their objects,
    "/pods?" for the watch; `is_silent`: nothing is answered."""

    def __init__(self, folder):
        self.changed = threading.Condition()
        self.version, self.oldest = 100, 0
        self.objects, self.history = {}, []  # (collection, name) -> object; (version, collection, type, object)
        self.logs, self.events, self.requests = {}, [], []
        self.refuses = self.tears = 0
        self.forbidden, self.unreachable, self.connections = set(), set(), set()
        self.answers, self.is_silent, self.has_ended = {}, False, threading.Event()
        self.page = 1000  # nodes at most in an answer
        self.clock = datetime.datetime(2026, 1, 1)
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": self}))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.config = folder / "kubeconfig"
        self.config.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "stub",
                    "clusters": [{"name": "stub", "cluster": {"server": f"http://127.0.0.1:{self.http.server_port}"}}],
                    "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub", "namespace": "ml"}}],
                    "users": [{"name": "stub", "user": {}}],
                }
            )
        )  # fmt: skip

    def end(self):
        self.has_ended.set()
        self.http.shutdown()
        self.http.server_close()
        self.cut()

    # ---- Objects ----

    def _record(self, kind, collection, found):
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        found["metadata"].setdefault("uid", "uid-" + found["metadata"]["name"])
        self.history.append((self.version, collection, kind, json.loads(json.dumps(found))))
        self.changed.notify_all()

    def put(self, collection, found):
        with self.changed:
            key = collection, found["metadata"]["name"]
            kind = "MODIFIED" if key in self.objects else "ADDED"
            self.objects[key] = found
            self._record(kind, collection, found)

    def delete(self, collection, name):
        with self.changed:
            self._record("DELETED", collection, self.objects.pop((collection, name)))
            if collection == "pods":
                self.logs = {key: log for key, log in self.logs.items() if key[0] != name}

    def put_pod(self, pod):
        pod["metadata"]["labels"][INSTANCE] = "train"
        self.put("pods", pod)

    def put_job(self, *conditions, name="train", **spec):
        true = [{"type": word, "status": "True", "reason": "R"} for word in conditions]
        job = {"kind": "Job", "metadata": {"name": name}, "spec": spec, "status": {"conditions": true}}
        self.put("jobs", job)

    def forget(self):
        """Versions before the present one are compacted."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()

    # ---- Logs ----

    def write(self, pod, *lines, start=0, step_s=0.1):
        with self.changed:
            log = self.logs.setdefault((pod, start), [])
            for line in lines:
                log.append((self.clock.isoformat(timespec="microseconds") + "000Z", line))
                self.clock += datetime.timedelta(seconds=step_s)
            self.changed.notify_all()

    def container_of(self, pod):
        found = self.objects.get(("pods", pod))
        return {**found["status"]["containerStatuses"][0], "uid": found["metadata"]["uid"]} if found else None

    # ---- Faults ----

    def cut(self):
        """Breaks all connections, as a load balancer that is restarted does."""
        with self.changed:
            for one in list(self.connections):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api = None

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.api.connections.add(self.connection)

    def finish(self):
        self.api.connections.discard(self.connection)
        try:
            super().finish()
        except OSError:
            pass

    def do_GET(self):
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        query.pop("timeout", None)  # kubectl's own limit
        self.api.requests.append((parts.path, query))
        try:
            self._answer(parts.path, query)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _answer(self, path, query):
        if self.api.is_silent:
            self.api.has_ended.wait()
        for end, text in self.api.answers.items():
            if path.endswith(end.rstrip("?")) and ("watch" in query) == end.endswith("?"):
                return self._send(text)
        if self.api.refuses:
            self.api.refuses -= 1
            return self._fail(503, "ServiceUnavailable", "the server is starting")
        if path == "/apis":
            return self._send({"groups": [{"name": name} for name in GROUPS]})
        if path == "/api/v1/nodes":
            return self._nodes(query)
        found = re.fullmatch(r"/(?:api/v1|apis/[^/]+/[^/]+)/namespaces/ml/(\w+)(?:/([^/]+))?(/log)?", path)
        if not found:
            return self._fail(404, "NotFound", "the server could not find the requested resource")
        collection, name, log = found.groups()
        if collection in self.api.forbidden:
            return self._fail(403, "Forbidden", f"{collection} is forbidden")
        if log and "log" in self.api.forbidden:
            return self._fail(403, "Forbidden", "log is forbidden")
        if log:
            return self._log(name, query)
        if collection == "events":
            return self._send({"metadata": {}, "items": self.api.events})
        if name:
            with self.api.changed:
                one = self.api.objects.get((collection, name))
            return self._send(one) if one else self._fail(404, "NotFound", f'{collection} "{name}" not found')
        if query.get("watch"):
            return self._watch(collection, query)
        with self.api.changed:
            items = [one for (kind, _), one in self.api.objects.items() if kind == collection and _fits(one, query)]
            answer = json.dumps({"metadata": {"resourceVersion": str(self.api.version)}, "items": items})
        return self._send(json.loads(answer))

    def _nodes(self, query):
        """The nodes that fit the query, in pages of at most `limit`."""
        if "nodes" in self.api.forbidden:
            return self._fail(403, "Forbidden", "nodes is forbidden")
        items = [one for (kind, _), one in self.api.objects.items() if kind == "nodes" and _fits(one, query)]
        first = int(query.get("continue", 0))
        end = first + min(int(query.get("limit", len(items))), self.api.page)
        more = {"continue": str(end)} if end < len(items) else {}
        return self._send({"kind": "NodeList", "metadata": more, "items": items[first:end]})

    # ---- Answers ----

    def _send(self, value, code=200):
        data = json.dumps(value).encode() if not isinstance(value, str) else value.encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json" if not isinstance(value, str) else "text/plain")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _fail(self, code, reason, text):
        self._send({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": text,
                    "code": code}, code)  # fmt: skip

    def _begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, text):
        if self.api.tears and len(text) > 8:
            self.api.tears -= 1
            text = text[: len(text) // 2]
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
            raise ConnectionResetError
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _watch(self, collection, query):
        version = int(query["resourceVersion"])
        self._begin_stream()
        ends = time.monotonic() + float(query["timeoutSeconds"])
        while time.monotonic() < ends and self.connection in self.api.connections:
            with self.api.changed:
                if version < self.api.oldest:
                    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    self._chunk(json.dumps({"type": "ERROR", "object": status}) + "\n")
                    break
                news = [one for one in self.api.history if one[0] > version and one[1] == collection]
                if not news:
                    self.api.changed.wait(0.5)
            for version, _, kind, found in news:  # noqa: B007
                if _fits(found, query):
                    self._chunk(json.dumps({"type": kind, "object": found}) + "\n")
            if not news:
                bookmark = {"metadata": {"resourceVersion": str(version)}}
                self._chunk(json.dumps({"type": "BOOKMARK", "object": bookmark}) + "\n")
        self._chunk("")

    def _log(self, pod, query):
        container = self.api.container_of(pod)
        if container is None:
            return self._fail(404, "NotFound", f'pods "{pod}" not found')
        if pod in self.api.unreachable:
            text = f'Get "https://10.0.1.7:10250/containerLogs/ml/{pod}/trainer": dial tcp 10.0.1.7:10250: i/o timeout'
            return self._fail(500, "InternalError", text)
        start = container.get("restartCount", 0) - bool(query.get("previous"))
        since, sent = query.get("sinceTime", ""), 0
        log = self.api.logs.setdefault((pod, start), [])
        first = next((at for at, (stamp, _) in enumerate(log) if stamp[:19] >= since[:19]), len(log))
        if "tailLines" in query:
            first = max(first, len(log) - int(query["tailLines"]))
        form = "{0} {1}\n" if query.get("timestamps") else "{1}\n"
        if not query.get("follow"):
            return self._send("".join(form.format(*one) for one in log[first:]))
        self._begin_stream()
        sent = first
        while self.connection in self.api.connections:
            with self.api.changed:
                now = self.api.container_of(pod)
                over = now is None or now["uid"] != container["uid"] or "terminated" in now["state"]
                over = over or now.get("restartCount", 0) != start
                news, sent = log[sent:], len(log)
                if not news and not over:
                    self.api.changed.wait(0.5)
            for one in news:
                self._chunk(form.format(*one))
            if over and not news:
                break
        self._chunk("")


def _fits(found, query):
    key, _, value = query.get("labelSelector", "").partition("=")
    if key and found["metadata"].get("labels", {}).get(key) != value:
        return False
    field, _, wanted = query.get("fieldSelector", "").partition("=")
    return field != "metadata.name" or found["metadata"]["name"] == wanted
