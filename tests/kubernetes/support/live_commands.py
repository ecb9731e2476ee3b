"""`farandole kubernetes logs` and `status` for tests: in a process of its own, and with a stub of the API server."""

import os
import subprocess
import sys
import threading
import time

import pytest
from api_pods import pod
from api_server import ApiServer
from machine import is_overloaded
from manifest_checks import kubectl

RUNNING, SUSPENDED, NO_SUCH_JOB, UNREACHABLE = 75, 76, 66, 69


@pytest.fixture
def api(tmp_path, monkeypatch):
    program = kubectl()
    if not program or not program.endswith("kubectl"):
        pytest.skip("needs kubectl: bash tests/kubernetes/setup.sh")
    monkeypatch.setenv("PATH", f"{os.path.dirname(program)}:{os.environ['PATH']}")
    server = ApiServer(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.config))
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    yield server
    server.end()


class Limit:
    """Seconds that begin again, three times at most, while the machine is overloaded: a slow machine is no failure."""

    def __init__(self, seconds):
        self.seconds, self.times = seconds, 3
        self.end = time.monotonic() + seconds

    def is_over(self):
        if time.monotonic() <= self.end:
            return False
        if not self.times or not is_overloaded():
            return True
        self.times -= 1
        self.end = time.monotonic() + self.seconds
        return False


def code_within(process, seconds):
    """The exit code of a process that ends within this time."""
    limit = Limit(seconds)
    while process.poll() is None:
        if limit.is_over():
            raise subprocess.TimeoutExpired(process.args, seconds)
        time.sleep(0.02)
    return process.returncode


class Command:
    """`farandole kubernetes WORDS` in a process of its own, whose output is read as it arrives."""

    def __init__(self, *words):
        code = "import sys; from farandole.integrations.kubernetes.__main__ import main; sys.exit(main(sys.argv[1:]))"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", code, *words], **pipes)
        self.out, self.err = [], []
        self.threads = [
            threading.Thread(target=lambda s=stream, to=lines: to.extend(line.rstrip() for line in s))
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for one in self.threads:
            one.start()

    def until(self, what, timeout=20):
        limit = Limit(timeout)
        while not what():
            assert not limit.is_over() and self.process.poll() is None, (self.out, self.err)
            time.sleep(0.02)

    def code(self, timeout=40):
        try:
            return code_within(self.process, timeout)
        finally:
            self.process.kill()
            for one in self.threads:
                one.join()
            self.process.stdout.close()
            self.process.stderr.close()


@pytest.fixture
def begin():
    started = []

    def start(*words):
        started.append(Command(*words))
        return started[-1]

    yield start
    for one in started:
        one.code()


def end_pod(api, index, code, made="1", **more):
    api.put_pod(pod(index, code=code, made=made, **more))


def follow_pod_1(api, begin, line="first"):
    """`logs --follow` of a job with two pods, after this first line of pod 1."""
    api.put_job()
    api.put_pod(pod(0))
    api.put_pod(pod(1))
    api.write("train-1-x1", line)
    command = begin("logs", "train", "--follow")
    command.until(lambda: f"1| {line}" in command.out)
    return command


def end_job(api, command):
    end_pod(api, 0, 0)
    api.put_job("Complete")
    assert command.code() == 0
