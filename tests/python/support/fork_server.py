"""Starts ranks as forks of a process that has imported their framework, which saves seconds for each rank.

The server reads one order in each message (arguments, environment, file of the output) and forks a rank. The rank
behaves like `python worker.py ARGUMENTS`: it has its own session and environment, and its interpreter ends normally.
The server reports the start and end of each rank. When the client ends, the server kills all ranks that still run.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

MESSAGE_BYTES = 1 << 18
# What ranks import that use the framework, where it is installed. None starts a thread before its first operation. An
# optimizer of PyTorch imports torch._dynamo.
FRAMEWORKS = {
    "numpy": ["numpy"],
    "torch": ["torch", "torch._dynamo", "torch.distributed._functional_collectives", "torch.distributed.checkpoint",
              "torch.distributed.fsdp", "torch.distributed.tensor"],
    "tensorflow": ["tensorflow"],
    "jax": ["jax", "optax"],
    "keras": ["keras"],
}  # fmt: skip


class Process:
    """A process that the server has started, with the interface of subprocess.Popen."""

    def __init__(self, server, pid):
        self._server = server
        self.pid = pid

    def poll(self):
        self._server.listen(0)
        return self._server.codes.get(self.pid)

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"rank in process {self.pid}", timeout)
            self._server.listen(left)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkServer:
    def __init__(self, framework, variables):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), str(theirs.fileno()), framework],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **variables},
        )
        theirs.close()
        self._started = []
        self.codes = {}  # of processes that have ended, by pid, as Popen.returncode has them

    def start(self, arguments, environment, output):
        with open(output, "w"):
            pass
        order = json.dumps({"arguments": arguments, "environment": environment, "output": output}).encode()
        assert len(order) < MESSAGE_BYTES, "an order of a rank is too long for one message"
        self._socket.send(order)
        while not self._started:
            self.listen(None)
        pid = self._started.pop()
        self.codes.pop(pid, None)  # an earlier process had the same number
        return Process(self, pid)

    def listen(self, seconds):
        """Reads the server's messages, and waits up to `seconds` for the first."""
        while select.select([self._socket], [], [], seconds)[0]:
            word = self._socket.recv(MESSAGE_BYTES)
            if not word:
                raise AssertionError(f"the process that starts ranks has ended, code {self._process.wait()}")
            kind, pid, code = json.loads(word)
            if kind == "started":
                self._started.append(pid)
            else:
                self.codes[pid] = code
            seconds = 0


_servers = {}


def start(arguments, environment, output, framework):
    """Starts a rank in a fork of a process that has imported `framework`, one of FRAMEWORKS."""
    # Keras reads its backend when it is imported.
    variables = {name: value for name, value in environment.items() if name == "KERAS_BACKEND"}
    key = (framework, *variables.values())
    if key not in _servers:
        _servers[key] = ForkServer(framework, variables)
    return _servers[key].start(arguments, environment, output)


# ---- in the server -------------------------------------------------------------------------------------------------


def become(order, descriptors):
    """Turns the child into the process that the order describes."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in descriptors:
        os.close(descriptor)
    os.setsid()
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # the folder of TMPDIR, also if the server has looked up its own
    sys.argv = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py"), *order["arguments"]]


def serve(ours):
    """Returns True in each child, and False in the server when its client has exited."""
    awake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = set()
    while True:
        ready, _, _ = select.select([ours, awake], [], [])
        if awake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(awake, 4096)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            running.discard(pid)
            ours.send(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]).encode())
        if ours not in ready:
            continue
        order = ours.recv(MESSAGE_BYTES)
        if not order:
            break
        pid = os.fork()
        if pid == 0:
            become(json.loads(order), [ours.detach(), awake, woken])
            return True
        running.add(pid)
        ours.send(json.dumps(["started", pid, None]).encode())
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return False


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from the terminal: the client ends the ranks
    for module in ("pytest", *FRAMEWORKS[sys.argv[2]]):  # modules of tests import pytest
        if importlib.util.find_spec(module.split(".")[0]):  # tests of NumPy alone run where PyTorch is not installed
            importlib.import_module(module)
    import worker

    # A rank that ends collects garbage. Without this it visits, and thereby copies, all objects of the framework: 0.95
    # CPU seconds for each rank with PyTorch instead of 0.25.
    gc.collect()
    gc.freeze()
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(worker.main())
