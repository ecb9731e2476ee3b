"""Job: the driver's side of a function that runs on ranks which agents start. FixedJob and ElasticJob derive from it.

A job system gives the job a Cluster, which starts the agents. run() of the job belongs to one thread, the caller's:
output of ranks and exceptions appear there.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, TextIO

from .failures import RankDied
from .server import Peer, Server
from .worlds import Secret, open_ports, settings

_PING_S, _MOST_UNANSWERED = 10.0, 6  # an agent that is stopped for a minute is lost
_FAILURES_S = 3.0  # the time that the other ranks have to end after one has failed


class Cluster:
    """A job system that starts agents. Its methods are called in the thread of the job's run()."""

    name = "the job system"
    stop_s = 15.0  # the time between the order to stop and cancel()

    def address(self) -> str:
        """The address of this host at which the workers reach it."""
        raise NotImplementedError

    def start(self, count: int, addresses: list[tuple[str, int]], key: Secret, done: Callable[[list, Any], None]):
        """Starts `count` agents, which call agent.run_agent(). Does not wait.

        Later some thread calls done(results, None), with what the agents have returned, or done([], error).
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Ends the agents that are left. done() should follow within `stop_s`."""
        raise NotImplementedError

    def place(self, facts: Mapping) -> str:
        """The text that names a worker in errors."""
        return f"{facts['host_name']} ({facts['address']}, process {facts['process']})"

    def how_lost(self, facts: Mapping, error: BaseException | None) -> str | None:
        """Why the agent was lost, if `error` of the job system tells it."""
        return None


@dataclass
class Options:
    """What the caller of a job chooses. Files and times as in the job system's run()."""

    start_timeout_s: float = 600.0
    interfaces: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    stdout: TextIO | None = None  # None: sys.stdout at the time of the call
    stderr: TextIO | None = None
    timestamps: bool = False

    @classmethod
    def of(cls, start_timeout_s: float, env: Mapping[str, Any] | None, stdout: TextIO | None, stderr: TextIO | None,
           nics: Sequence[str] | None, timestamps: Any) -> Options:  # fmt: skip
        """From the arguments of a run(). ValueError if `start_timeout_s` is not positive."""
        if not float(start_timeout_s) > 0:
            raise ValueError(f"start_timeout={start_timeout_s}: give a positive number of seconds")
        variables = {name: str(value) for name, value in (env or {}).items()}
        interfaces = ",".join(nics) if nics else None
        return cls(float(start_timeout_s), interfaces, variables, stdout, stderr, bool(timestamps))


@dataclass(eq=False)
class Worker:
    """An agent and the rank process that it runs."""

    index: int
    facts: dict
    peer: Peer
    rank: int | None = None
    ended: bool = False  # its process has ended, or the agent is lost
    lost: bool = False  # the connection to the agent has ended


class Job:
    """What both kinds of jobs share: the agents' connections, output, and failures in the order of their arrival."""

    def __init__(self, cluster: Cluster, options: Options):
        self.cluster, self.options = cluster, options
        self.key = Secret(secrets.token_hex(32))
        self.workers: dict[int, Worker] = {}
        self.failures: dict[int, BaseException] = {}  # by rank
        self.places: dict[int, str] = {}  # of those ranks
        self.over: str | None = None  # why the job ends early
        self.limit: float | None = None  # when the remaining agents are ordered to stop
        self._cancel_at: float | None = None
        self._leave_at: float | None = None  # when the job system's end is not awaited any longer
        self._done: tuple[list, BaseException | None] | None = None
        self._next = 0
        self._server: Server | None = None

    # ---- For subclasses ---------------------------------------------------------------------------------------------

    def agents(self) -> int:
        """How many agents the job system starts."""
        raise NotImplementedError

    def on_hello(self, worker: Worker) -> None:
        raise NotImplementedError

    def on_join(self, worker: Worker, choices: Sequence[str], has_state: bool) -> None:
        raise NotImplementedError

    def on_end(self, worker: Worker, error: BaseException | None) -> None:
        """The worker's process has ended: well without an `error`, which has been noted otherwise."""
        raise NotImplementedError

    def due(self) -> float | None:
        """When on_due() is to be called."""
        raise NotImplementedError

    def on_due(self) -> None:
        raise NotImplementedError

    def results(self, values: dict[int, Any]) -> list:
        """The results of the job, given those of the workers that have returned. Raises if it has failed."""
        raise NotImplementedError

    # ---- The loop ---------------------------------------------------------------------------------------------------

    def run(self) -> list:
        """Starts the agents and returns the results in rank order. RankError if a rank fails."""
        address = self.cluster.address()
        host = address if address.startswith("127.") or address == "::1" else "::" if ":" in address else "0.0.0.0"
        self._server = Server(host, open_ports(), self.key.text, self._on_message, self._on_lost)
        try:
            self.cluster.start(self.agents(), [(address, self._server.port)], self.key, self._finish)
            self._loop()
        except BaseException:
            with contextlib.suppress(Exception):
                self.cluster.cancel()
            raise
        finally:
            self._server.close()
        values, error = self._done or ([], None)
        if error is not None:
            self._note_losses(error)
        return self.results({index: pickle.loads(outcome)["value"] for index, outcome in values})

    def _finish(self, values: list, error: BaseException | None) -> None:
        self._done = (values, error)
        self._server.wake()

    def _loop(self) -> None:
        ping_at = time.monotonic() + _PING_S
        while self._done is None:
            times = (self.limit, self._cancel_at, self._leave_at, self.due(), ping_at)
            limits = [one for one in times if one is not None]
            self._server.step(min(limits))
            now = time.monotonic()
            if now >= ping_at:
                ping_at = now + _PING_S
                self._server.ping(_MOST_UNANSWERED)
            if self.limit is not None and now >= self.limit:
                # A job that has succeeded is not cancelled: large results take their time.
                self.limit, self._cancel_at = None, None if self.over is None else now + self.cluster.stop_s
                for worker in self.workers.values():
                    self._server.send(worker.peer, {"kind": "stop"})
            if self._cancel_at is not None and now >= self._cancel_at:
                self._cancel()
            if self._leave_at is not None and now >= self._leave_at:
                return  # whatever the job system starts later finds no driver, and ends
            due = self.due()
            if due is not None and now >= due:
                self.on_due()

    def end(self, why: str, grace_s: float = _FAILURES_S) -> None:
        """Ends the job early. The ranks that are left have `grace_s` to end by themselves."""
        if self.over is None:
            self.over = why
            self.limit = time.monotonic() + grace_s

    def give_up(self, why: str) -> None:
        """Ends the job at once. What the ranks report from now on is a consequence."""
        self.over, self.limit = self.over or why, None
        self._cancel()

    def _cancel(self) -> None:
        self._cancel_at, self._leave_at = None, time.monotonic() + self.cluster.stop_s
        self.cluster.cancel()

    def stop_agents(self) -> None:
        """Ends agents whose ranks have all ended."""
        self.limit = time.monotonic()

    def begin(self, worker: Worker, more: dict[str, str], elastic: bool) -> None:
        """Lets the agent start the worker's process."""
        own = settings(self.options.start_timeout_s, self.options.interfaces)
        self._server.send(worker.peer, {"kind": "start", "worker": worker.index, "elastic": elastic,
                                        "variables": {"FARANDOLE_JOB_KEY_FILE": None, **own, **self.options.variables,
                                                      **more}})  # fmt: skip

    def reply(self, worker: Worker, words: str) -> None:
        self._server.send(worker.peer, {"kind": "words", "text": words})

    def new_worker(self, peer: Peer, facts: dict) -> Worker:
        worker = peer.worker = self.workers[self._next] = Worker(self._next, facts, peer)
        self._next += 1
        return worker

    # ---- Events -----------------------------------------------------------------------------------------------------

    def _on_message(self, peer: Peer, message: dict, body: bytes) -> None:
        kind = message["kind"]
        if kind == "hello":
            if self.over is not None:
                return self._server.send(peer, {"kind": "stop"})
            return self.on_hello(self.new_worker(peer, message))
        worker: Worker = peer.worker
        if kind == "line":
            self._print(worker, message["stream"], message["text"])
        elif kind == "join":
            self.on_join(worker, message["choices"], message["has_state"])
        elif kind == "ended":
            worker.ended = True
            self.on_end(worker, None if message["well"] else self._note(worker, _error_of(message, body)))

    def _on_lost(self, peer: Peer) -> None:
        worker = peer.worker
        if worker is None or worker.ended:
            return
        worker.ended = worker.lost = True
        self.on_end(worker, self._note(worker, RankDied("its worker was lost")))

    def _note(self, worker: Worker, error: BaseException) -> BaseException:
        rank = self._rank_of(worker)
        if self.limit is not None or self.over is None:  # afterwards ranks end because of the order to stop
            self.failures.setdefault(rank, error)
            self.places.setdefault(rank, self.cluster.place(worker.facts))
        return error

    @staticmethod
    def _rank_of(worker: Worker) -> int:
        """The rank; the number of the worker if it has none yet."""
        return worker.index if worker.rank is None else worker.rank

    def _note_losses(self, error: BaseException) -> None:
        """The job system has failed. Of several lost agents the one that it names is the cause."""
        lost = {self._rank_of(one): one for one in self.workers.values() if one.lost}
        for rank in [one for one in self.failures if one in lost]:
            why = self.cluster.how_lost(lost[rank].facts, error)
            if why is not None:
                others = {one: failure for one, failure in self.failures.items() if one not in lost}
                self.failures = {rank: RankDied(why), **others}
                return
        if not self.failures and self.over is None:
            raise error

    def _print(self, worker: Worker, stream: str, text: str) -> None:
        chosen = self.options.stderr if stream == "stderr" else self.options.stdout
        file = chosen or getattr(sys, stream)
        rank = "?" if worker.rank is None else worker.rank
        time_text = f"{datetime.now():%Y-%m-%d %H:%M:%S.%f}"[:-3] + " " if self.options.timestamps else ""
        file.write(f"{time_text}[{rank}] {text}\n")
        file.flush()


def _error_of(message: dict, outcome: bytes) -> BaseException:
    """The exception of a rank, with its traceback; RankDied if it has stored none."""
    one = pickle.loads(outcome) if outcome else {}
    if "traceback" not in one:
        after = " after its function had returned" if "value" in one else ""
        return RankDied(f"{message['ending']}{after}; its last lines are above")
    error = one["error"] if one["error"] is not None else RuntimeError(one["summary"])
    with contextlib.suppress(AttributeError):
        error.rank_traceback = one["traceback"]
    return error
