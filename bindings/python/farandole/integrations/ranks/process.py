"""RankProcess: one rank as a child process that runs a pickled function and stores its outcome.

The child runs `python -m farandole.integrations.ranks.process FOLDER PARENT`. The kernel kills it when the thread that
started it ends, so a job system that kills its worker kills the rank too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Callable

from ... import objects, run_rank

_PR_SET_PDEATHSIG = 1
_STOP_S = 5.0  # between SIGTERM and SIGKILL
_LINE_BYTES = 1 << 16  # a longer line is passed on in parts


class RankProcess:
    """A rank that runs `task`, with the variables `variables` beside those of this process (None removes one).

    `task` is what task_of() has returned. `on_line(stream, text)` gets each line of the rank's output without its end;
    `stream` is "stdout" or "stderr". The owner registers the process in a selector with watch(), and calls the function
    that the selector's key has as its data. `ended` is true once the process has exited and its output has been read.
    """

    def __init__(self, task: bytes, variables: dict[str, str | None], on_line: Callable[[str, str], None],
                 python: str | None = None):  # fmt: skip
        self._on_line = on_line
        self._folder = tempfile.mkdtemp(prefix="farandole-rank-")  # mode 0700
        try:
            with objects.private_file(os.path.join(self._folder, "task")) as file:
                pickle.dump([entry for entry in sys.path if entry], file)  # first: unpickling the task may need it
                file.write(task)
            both = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
            environment = {name: value for name, value in both.items() if value is not None}
            self._child = subprocess.Popen(
                [python or sys.executable, "-m", __name__, self._folder, str(os.getpid())],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.pid = self._child.pid
        self.ended = False
        self._unread = {"stdout": b"", "stderr": b""}
        self._exited, exited = socket.socketpair()
        threading.Thread(target=self._wait, args=(exited,), name="farandole rank", daemon=True).start()

    def _wait(self, exited: socket.socket) -> None:
        self._child.wait()
        exited.close()  # wakes the selector

    def watch(self, selector: selectors.BaseSelector) -> None:
        """Registers the output and the end of the process. Each key's data is the function to call."""
        self._selector = selector
        for stream in ("stdout", "stderr"):
            pipe = getattr(self._child, stream)
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, lambda stream=stream: self._read(stream))
        selector.register(self._exited, selectors.EVENT_READ, self._finish)

    def _read(self, stream: str) -> None:
        pipe = getattr(self._child, stream)
        try:
            data = os.read(pipe.fileno(), _LINE_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (self._unread[stream] + data).split(b"\n")
        if not data and rest or len(rest) >= _LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._unread[stream] = rest
        for line in lines:
            self._on_line(stream, line.decode(errors="replace"))
        if not data:
            self._selector.unregister(pipe)
            pipe.close()

    def _finish(self) -> None:
        """After the exit of the process: reads what is left in the pipes. Descendants may keep them open."""
        self._selector.unregister(self._exited)
        self._exited.close()
        for stream in ("stdout", "stderr"):
            pipe, before = getattr(self._child, stream), None
            while not pipe.closed and before != self._unread[stream]:
                before = self._unread[stream]
                self._read(stream)
            if not pipe.closed:
                self._selector.unregister(pipe)
                pipe.close()
            if self._unread[stream]:
                self._on_line(stream, self._unread[stream].decode(errors="replace"))
        self.ended = True

    def outcome(self) -> bytes | None:
        """What the rank has stored: pickled, see farandole.run_rank. None if it ended without an outcome."""
        try:
            with open(os.path.join(self._folder, f"outcome.{self.pid}"), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def ending(self) -> str:
        """How the process ended, as text: "exit code 3" or "signal SIGKILL"."""
        code = self._child.wait()
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"

    def stop(self) -> None:
        """Ends the process: SIGTERM first, then SIGKILL after five seconds. Does not wait."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGTERM)
        killer = threading.Timer(_STOP_S, self._child.kill)
        killer.daemon = True
        killer.start()

    def close(self) -> None:
        """Kills the process if it still runs, and removes its files."""
        self._child.kill()
        self._child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def task_of(function: Callable, args: tuple, kwargs: dict, dumps: Callable = objects.dumps) -> bytes:
    """The bytes of a call for RankProcess. ValueError if it cannot be pickled. `dumps` is the pickler to use."""
    try:
        return dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise ValueError(f"the function or its arguments cannot be pickled: {error}") from error


def main() -> None:
    """Runs the task of the folder sys.argv[1] as a rank that does not outlive the process sys.argv[2]."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[2]):  # it ended before the call
        sys.exit(1)
    try:
        run_rank.main()
    except SystemExit as error:  # of the function: it has no result, whatever the code
        sys.exit(error.code or 1)


if __name__ == "__main__":
    main()
