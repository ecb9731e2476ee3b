"""An API server over HTTPS that has nodes: for programs of pods, which have a token and the server's certificate.

As a program it serves in a simulated pod: python nodes_server.py FOLDER PORT, where FOLDER is that of a NodesServer.
"""

import json
import re
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "token-of-the-account"


def make_account(folder, address="127.0.0.1"):
    """Makes a certificate of this address, and what a pod has of its service account: ca.crt and token."""
    folder.mkdir(exist_ok=True)
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=kubernetes -addext"
    words = [*words.split(), f"subjectAltName=IP:{address}", "-keyout", folder / "key.pem", "-out", folder / "ca.crt"]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    (folder / "token").write_text(TOKEN)
    return folder


class NodesServer:
    """`nodes`: {name: labels}. `answers`: functions of the handler, each of which answers one of the next requests."""

    def __init__(self, folder, nodes, address="127.0.0.1", port=0):
        self.nodes, self.answers, self.requests = nodes, [], []
        self.released = threading.Event()  # ends answers that take for ever
        self.http = ThreadingHTTPServer((address, port), type("Handler", (_Handler,), {"api": self}))
        self.http.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self.http.server_port

    def start(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def end(self):
        self.released.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    api = None

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass  # the client has ended, or trusts another certificate

    def do_GET(self):
        self.api.requests.append((self.path, self.headers.get("Authorization"), self.headers.get("Accept")))
        if self.api.answers:
            return self.api.answers.pop(0)(self)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.fail(401, "Unauthorized")
        found = re.fullmatch(r"/api/v1/nodes/([^/]+)", self.path)
        if not found or found[1] not in self.api.nodes:
            return self.fail(404, f'nodes "{found[1] if found else self.path}" not found')
        about = {"name": found[1], "labels": self.api.nodes[found[1]]}
        return self.send({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": about})

    def send(self, value, code=200, **headers):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(body)

    def fail(self, code, message):
        self.send({"kind": "Status", "status": "Failure", "message": message, "code": code}, code)


def main():
    folder = Path(sys.argv[1])
    nodes = json.loads((folder / "nodes.json").read_text())
    server = NodesServer(folder, nodes, address="", port=int(sys.argv[2]))
    print("serving nodes", flush=True)
    server.http.serve_forever()


if __name__ == "__main__":
    main()
