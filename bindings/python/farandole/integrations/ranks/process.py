"""RankProcess: one rank as a child process that runs a pickled function and stores its outcome.

The child runs `python -m farandole.integrations.ranks.process TASK OUTCOME PARENT`: two descriptors of memory that both
processes share, and the parent's process number. The kernel kills the child when the thread that started it ends, so a
job system that kills its worker kills the rank too, and nothing is left in a file system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import BinaryIO, Callable

from ... import objects, run_rank

_PR_SET_PDEATHSIG = 1
_STOP_S = 5.0  # between SIGTERM and SIGKILL
_LINE_BYTES = 1 << 16  # a longer line is passed on in parts
_SIZE = struct.Struct("<Q")  # before an outcome: one that is cut short is none


def _memory(name: str) -> BinaryIO:
    """A file in memory that has no name in a file system, open for reading and writing."""
    return open(os.memfd_create(name), "w+b")


class RankProcess:
    """A rank that runs `task`, with the variables `variables` beside those of this process (None removes one).

    `task` is what task_of() has returned. `on_line(stream, text)` gets each line of the rank's output without its end;
    `stream` is "stdout" or "stderr". The owner registers the process in a selector with watch(), and calls the function
    that the selector's key has as its data. `ended` is true once the process has exited and its output has been read.
    """

    def __init__(self, task: bytes, variables: dict[str, str | None], on_line: Callable[[str, str], None],
                 python: str | None = None):  # fmt: skip
        self._on_line = on_line
        both = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        environment = {name: value for name, value in both.items() if value is not None}
        with _memory("farandole task") as task_file, contextlib.ExitStack() as on_error:
            self._outcome = on_error.enter_context(_memory("farandole outcome"))
            pickle.dump([entry for entry in sys.path if entry], task_file)
            task_file.write(task)
            task_file.flush()
            descriptors = [task_file.fileno(), self._outcome.fileno()]
            self._child = subprocess.Popen(
                [python or sys.executable, "-m", __name__, *map(str, descriptors), str(os.getpid())],
                env=environment, pass_fds=descriptors,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
            on_error.pop_all()
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
        """What the rank has stored: pickled, see farandole.run_rank. None if it ended without a whole outcome."""
        self._outcome.seek(0)
        size = self._outcome.read(_SIZE.size)
        if len(size) < _SIZE.size:
            return None
        outcome = self._outcome.read()
        return outcome if len(outcome) == _SIZE.unpack(size)[0] else None

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
        """Kills the process if it still runs, and frees the memory that it shared."""
        self._child.kill()
        self._child.wait()
        self._outcome.close()


def task_of(function: Callable, args: tuple, kwargs: dict, dumps: Callable = objects.dumps) -> bytes:
    """The bytes of a call for RankProcess. ValueError if it cannot be pickled. `dumps` is the pickler to use."""
    try:
        return dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise ValueError(f"the function or its arguments cannot be pickled: {error}") from error


def main() -> None:
    """Runs the task of the descriptor sys.argv[1] as a rank and stores its outcome in the descriptor sys.argv[2].

    The rank does not outlive the process sys.argv[3].
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    task, outcome, parent = map(int, sys.argv[1:])
    if os.getppid() != parent:  # it ended before the call
        sys.exit(1)
    for descriptor in task, outcome:  # programs that the task starts do not get them
        os.set_inheritable(descriptor, False)

    def read():
        with open(task, "rb") as file:
            file.seek(0)  # the position is shared with the parent, which has written
            return run_rank.read_task(file)

    def store(data: bytes):
        with open(outcome, "wb", closefd=False) as file:
            file.write(_SIZE.pack(len(data)) + data)

    try:
        run_rank.perform(read, store)
    except SystemExit as error:  # of the function: it has no result, whatever the code
        sys.exit(error.code or 1)


if __name__ == "__main__":
    main()
