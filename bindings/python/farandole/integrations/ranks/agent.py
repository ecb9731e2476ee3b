"""Agent: what a worker of a job system runs. It starts rank processes as the driver says, and reports on them.

    agent -> driver    hello FACTS, line STREAM TEXT, join CHOICES HAS_STATE (elastic), ended ENDING + outcome, pong
    driver -> agent    start VARIABLES, words TEXT (elastic: the reply to a join, or a change), ping, stop

In an elastic job the rank process connects to the agent as to `farandole run`, with elastic_client.LauncherClient. The
agent passes its requests on to the driver. One thread does all of this.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket

from ... import rendezvous
from .channel import MOST_BYTES, Broken, Channel
from .process import RankProcess
from .worlds import Secret, both_rendezvous

_HANDSHAKE_S = 60.0


def run_agent(addresses: list[tuple[str, int]], key: Secret, place: dict, task: bytes,
              python: str | None = None) -> list[tuple[int, bytes]]:  # fmt: skip
    """Runs ranks until the driver stops this agent or is gone. Returns [(worker, outcome)] if its rank has returned.

    `addresses`: of the driver. `place`: what the driver needs to name this worker in errors, and its GPUs. `task`: of
    process.task_of(). `python`: the interpreter of the ranks; by default that of this process.
    """
    with contextlib.closing(Channel(addresses, key.text, _HANDSHAKE_S)) as channel:
        return _Agent(channel, key, place, task, python).run()


class _Agent:
    def __init__(self, channel: Channel, key: Secret, place: dict, task: bytes, python: str | None):
        self._channel, self._key, self._task, self._python = channel, key, task, python
        self._address = channel.own_address()
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel.socket, selectors.EVENT_READ, self._obey)
        self._worker = -1  # the number of the rank process that runs or has run
        self._process: RankProcess | None = None
        self._launcher: _Launcher | None = None
        self._results: list[tuple[int, bytes]] = []
        self._stopped = False
        channel.send({"kind": "hello", "host": rendezvous.host_identity(), "host_name": socket.gethostname(),
                      "address": self._address, "process": os.getpid(),
                      "choices": both_rendezvous(self._address), **place})  # fmt: skip

    def run(self) -> list[tuple[int, bytes]]:
        try:
            while not (self._stopped and self._process is None):
                for one, _ in self._selector.select():
                    if one.fileobj in self._selector.get_map():  # an earlier event may have removed it
                        one.data()
                if self._process is not None and self._process.ended:
                    self._report_end()
        except Broken:
            pass  # without the driver, no process needs the ranks
        finally:
            if self._process is not None:
                self._process.close()
            if self._launcher is not None:
                self._launcher.close()
            self._selector.close()
        return self._results

    def _obey(self) -> None:
        for message, _ in self._channel.receive():
            kind = message["kind"]
            if kind == "start":
                self._start(message["worker"], dict(message["variables"]), message["elastic"])
            elif kind == "words" and self._launcher is not None:
                self._launcher.reply(message["text"])
            elif kind == "ping":
                self._channel.send({"kind": "pong"})
            elif kind == "stop":
                self._stopped = True
                if self._process is not None:
                    self._process.stop()

    def _start(self, worker: int, variables: dict[str, str], elastic: bool) -> None:
        variables["FARANDOLE_JOB_KEY"] = self._key.text
        if elastic:
            self._launcher = _Launcher(self._selector, self._join)
            variables.update({"FARANDOLE_ELASTIC": self._launcher.address, "FARANDOLE_WORKER": str(worker)})
        self._worker = worker
        self._process = RankProcess(self._task, variables, self._pass_on, self._python)
        self._process.watch(self._selector)

    def _pass_on(self, stream: str, line: str) -> None:
        self._channel.send({"kind": "line", "stream": stream, "text": line})

    def _join(self, has_state: bool) -> None:
        self._channel.send({"kind": "join", "choices": both_rendezvous(self._address), "has_state": has_state})

    def _report_end(self) -> None:
        process, self._process = self._process, None
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None
        outcome, ending = process.outcome(), process.ending()
        process.close()
        well = outcome is not None and ending == "exit code 0"
        if well:
            self._results.append((self._worker, outcome))
        body = b"" if well or outcome is None or len(outcome) > MOST_BYTES // 2 else outcome
        self._channel.send({"kind": "ended", "well": well, "ending": ending, "process": process.pid}, body)


class _Launcher:
    """The listener that stands for `farandole run` towards the rank process of an elastic job."""

    def __init__(self, selector: selectors.BaseSelector, on_join):
        self.address = f"unix:@farandole-agent-{secrets.token_hex(16)}"
        self._selector, self._on_join, self._connection, self._unread = selector, on_join, None, b""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.address[len("unix:@") :])
        self._listener.listen()
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if self._connection is not None or int.from_bytes(credentials[4:8], "little") != os.geteuid():
            connection.close()
            return
        self._connection = connection
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self) -> None:
        try:
            data = self._connection.recv(4096)
        except OSError:
            data = b""
        if not data or len(self._unread) > 4096:
            self._selector.unregister(self._connection)
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            if line.startswith(b"join "):
                self._on_join(not line.endswith(b" stateless"))
            elif line == b"ping":
                self.reply("pong")

    def reply(self, line: str) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the process has ended; its end is reported
                self._connection.sendall(line.encode() + b"\n")

    def close(self) -> None:
        for one in (self._listener, self._connection):
            if one is not None:
                if one in self._selector.get_map():
                    self._selector.unregister(one)
                one.close()
