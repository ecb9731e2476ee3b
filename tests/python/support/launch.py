"""Runs ranks as processes, with a deadline, and leaves none behind."""

import collections
import functools
import importlib.util
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time

import fork_server
from limits import allowed

SUPPORT = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(SUPPORT, "..", "..", ".."))
# TEST_PROGRAM is set where an installed wheel is tested: packaging/userlands.sh.
FARANDOLE = os.environ.get("TEST_PROGRAM") or os.path.join(ROOT, "build", "bin", "farandole")
DEADLINE_S = 60


_reserved = collections.deque(maxlen=256)


def free_port():
    """A port of 127.0.0.1 at which no other process will listen or connect from.

    A bound socket reserves it until 256 more ports are taken. It does not listen, so that the program under test can,
    if it sets SO_REUSEADDR as servers do; the kernel gives the port to no other process that asks for any free port.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)
    return holder.getsockname()[1]


def _file_of(module):
    """The path of a test module."""
    loaded = sys.modules.get(module)
    return os.path.abspath(loaded.__file__ if loaded else importlib.util.find_spec(module).origin)


@functools.cache
def _framework_of(file):
    """The one of fork_server.FRAMEWORKS from whose process the ranks of a test module are forked."""
    folder = os.path.basename(os.path.dirname(file))
    return folder if folder in fork_server.FRAMEWORKS else "torch" if _names_torch(file, set()) else "numpy"


def _names_torch(file, visited):
    """Whether PyTorch is in the source of a module, or of a module beside it or in this folder that it imports."""
    visited.add(file)
    with open(file) as source:
        text = source.read()
    if "torch" in text:
        return True
    for name in re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE):
        for place in (os.path.dirname(file), SUPPORT):
            imported = os.path.join(place, f"{name}.py")
            # This file and fork_server name PyTorch in order to choose it.
            if os.path.exists(imported) and name not in ("launch", "fork_server") and imported not in visited:
                if _names_torch(imported, visited):
                    return True
    return False


class Rank:
    """One rank: its exit code, its output, and the outcome of each check that it ran."""

    def __init__(self, number, process, folder):
        self.number = number
        self.process = process
        self.folder = folder
        self.code = None

    @property
    def output(self):
        with open(os.path.join(self.folder, f"{self.number}.out"), errors="replace") as file:
            return file.read()

    @property
    def outcomes(self):
        """{check: None for passed, or the traceback}"""
        path = os.path.join(self.folder, f"{self.number}.json")
        if not os.path.exists(path):
            return {}
        with open(path) as file:
            return dict(json.loads(line) for line in file)


def start_fresh(arguments, environment, output):
    with open(output, "w") as file:
        return subprocess.Popen(
            [sys.executable, os.path.join(SUPPORT, "worker.py"), *arguments],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


class Launched:
    """The ranks of one job. As a context manager it ends ranks that still run.

    Ranks are forked from a process that has imported the framework after which the folder of the module is named, or
    else PyTorch if the module uses it, or else NumPy. Where `fresh`, they are interpreters of their own: for tests of
    how an interpreter starts, ends or forks."""

    def __init__(self, size, module, checks, environment=None, arguments=(), rendezvous=None, fresh=False):
        self.folder = tempfile.TemporaryDirectory(prefix="farandole-test-")
        file = _file_of(module)
        framework = _framework_of(file)
        key = secrets.token_hex(16)
        rendezvous = rendezvous or f"tcp://127.0.0.1:{free_port()}"
        self.ranks = []
        for number in range(size):
            variables = {
                name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))
            }
            variables.update(FARANDOLE_RANK=str(number), FARANDOLE_SIZE=str(size), FARANDOLE_RENDEZVOUS=rendezvous,
                             FARANDOLE_JOB_KEY=key, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1",
                             TMPDIR=self.folder.name)  # what a killed rank leaves there is removed  # fmt: skip
            variables.update(environment or {})
            outcomes = os.path.join(self.folder.name, f"{number}.json")
            command = [file, ",".join(checks), outcomes, *arguments]
            output = os.path.join(self.folder.name, f"{number}.out")
            if fresh:
                process = start_fresh(command, variables, output)
            else:
                process = fork_server.start(command, variables, output, framework)
            self.ranks.append(Rank(number, process, self.folder.name))

    def wait(self, deadline_s=DEADLINE_S):
        end = time.monotonic() + allowed(deadline_s)
        try:
            for rank in self.ranks:
                rank.code = rank.process.wait(max(0.01, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            running = [rank.number for rank in self.ranks if rank.process.poll() is None]
            self.end()
            raise AssertionError(f"ranks {running} still ran after {deadline_s} s\n{self.report()}") from None
        return self

    def report(self):
        return "\n".join(f"---- rank {rank.number}, exit code {rank.process.poll()}\n{rank.output[-4000:]}"
                         for rank in self.ranks)  # fmt: skip

    def end(self):
        for rank in self.ranks:
            try:
                os.killpg(rank.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            rank.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()
        self.folder.cleanup()


def launch(
    size, check, environment=None, arguments=(), deadline_s=DEADLINE_S, codes=None, rendezvous=None, fresh=False
):
    """Runs one check on `size` ranks, asserts that each exits with 0 (or `codes[rank]`), and returns their outputs."""
    with Launched(size, check.__module__, [check.__name__], environment, arguments, rendezvous, fresh) as job:
        job.wait(deadline_s)
        expected = codes or [0] * size
        assert [rank.code for rank in job.ranks] == expected, job.report()
        return [rank.output for rank in job.ranks]


def checks_of(module):
    return [name for name in vars(module) if name.startswith("check_")]


_sessions = {}


def require(module, size, check, environment=None, deadline_s=DEADLINE_S, fresh=False):
    """Asserts that `check` passed on all ranks, and returns their outputs.

    The first call runs all checks of a module.
    """
    key = (module.__name__, size, tuple(sorted((environment or {}).items())))
    if key not in _sessions:
        with Launched(size, module.__name__, checks_of(module), environment, fresh=fresh) as job:
            trouble = None
            try:
                job.wait(deadline_s)
            except AssertionError as error:
                trouble = str(error)
            printed = [rank.output for rank in job.ranks]
            _sessions[key] = [rank.outcomes for rank in job.ranks], trouble or job.report(), printed
    outcomes, report, printed = _sessions[key]
    for number, one in enumerate(outcomes):
        assert check in one, f"rank {number} did not come to {check}\n{report}"
        assert one[check] is None, f"rank {number}: {one[check]}\n{report}"
    return printed
