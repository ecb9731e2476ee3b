"""ElasticJob: makes a new world when workers are lost or join."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...run import rank_error
from .elastic_worlds import ElasticWorlds, Place, World
from .failures import RankDied, explain
from .job import Cluster, Job, Options, Worker


def limits_of(usual: int, fewest: int | None, most: int | None) -> tuple[int, int]:
    """The fewest and the most ranks of an elastic job. ValueError if no number is between them."""
    least = usual if fewest is None else int(fewest)
    limit = max(usual, least) if most is None else int(most)
    if not 1 <= least <= limit:
        raise ValueError(f"min_num_proc={least} and max_num_proc={limit} leave no number of ranks between them")
    return least, limit


class ElasticJob(Job):
    """A job of a function that farandole.elastic.run has wrapped, with `fewest` to `most` ranks.

    The job system starts `most` agents, and replaces those that are lost, as far as it has room. An agent whose rank
    dies or raises starts another process, which joins at the next commit of the others.
    """

    def __init__(self, fewest: int, most: int, resets: int, timeout_s: float, cluster: Cluster, options: Options):
        super().__init__(cluster, options)
        self._fewest, self._most = fewest, most
        self._worlds = ElasticWorlds(fewest, most, resets, timeout_s, options.start_timeout_s)
        self._members: dict[int, Worker] = {}  # of the last generation
        self._announced = False  # whether rank 0 has received the news of newcomers
        self._start_due: float | None = None
        self._generation = 0

    def agents(self) -> int:
        return self._most

    def run(self) -> list:
        self._start_due = time.monotonic() + self.options.start_timeout_s
        return super().run()

    def on_hello(self, worker: Worker) -> None:
        if self._worlds.over or self._worlds.generations.finished:
            return self._server.send(worker.peer, {"kind": "stop"})
        self._worlds.start(worker.index, Place(worker.facts["host"], worker.facts["host"]))
        gpus = worker.facts.get("gpus", ())
        more = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        more.update({"HOROVOD_HOSTNAME": worker.facts["host_name"], "HOROVOD_CONTROLLER": "gloo"})
        self.begin(worker, more, elastic=True)

    def on_join(self, worker: Worker, choices: Sequence[str], has_state: bool) -> None:
        self._worlds.join(worker.index, choices, has_state)
        self._advance()

    def on_end(self, worker: Worker, error: BaseException | None) -> None:
        _, rank = self._worlds.end(worker.index, error is None)
        self._advance()
        if self._worlds.over:
            self.end(self._worlds.over)
        elif self._worlds.generations.finished:
            self._finish_agents()
        elif not worker.lost and (rank is not None or isinstance(error, RankDied)):
            # A worker that raised before it had a rank is not replaced: the next one would raise the same.
            self.on_hello(self.new_worker(worker.peer, worker.facts))
        elif not worker.lost:
            self._server.send(worker.peer, {"kind": "stop"})
        if self.over and all(one.ended for one in self.workers.values()):
            self.stop_agents()

    def _finish_agents(self) -> None:
        """Once a rank has returned, agents without a rank of the last generation are not needed any more."""
        for one in self.workers.values():
            is_last = one.peer.worker is one  # earlier ranks of the agent have ended
            if is_last and (one.ended or one.index not in self._worlds.generations.members):
                self._server.send(one.peer, {"kind": "stop"})

    def _advance(self) -> None:
        begun = None
        for index, answer in self._worlds.advance(time.monotonic()):
            worker = self.workers[index]
            if not isinstance(answer, World):
                self.reply(worker, f"end {answer}")
                continue
            if begun is None:
                begun, self._members = answer, {}
            worker.rank = answer.member.rank
            self._members[worker.rank] = worker
            numbers = (answer.generation, worker.rank, answer.member.size, answer.member.local_rank,
                       answer.member.local_size)  # fmt: skip
            self.reply(worker, f"world {' '.join(map(str, numbers))} {answer.rendezvous}")
        if begun is not None:
            self._announced, self._generation, self._start_due = False, begun.generation, None
            self.failures, self.places = {}, {}  # those of earlier generations were survived
        if not self._announced and self._worlds.generations.has_newcomers() and 0 in self._members:
            self._announced = True
            self.reply(self._members[0], "hosts added")

    def due(self) -> float | None:
        limits = [one for one in (self._worlds.due, self._start_due) if one is not None]
        return min(limits, default=None) if self.over is None else None

    def on_due(self) -> None:
        now = time.monotonic()
        if self._start_due is not None and now >= self._start_due:
            self._start_due = None
            came = len(self.workers)
            if came < self._fewest:
                return self.give_up(
                    f"{self.cluster.name} started {came} of {self._fewest} workers within "
                    f"{self.options.start_timeout_s:g} s; free slots, or give a longer start_timeout"
                )
        if self._worlds.due is not None and now >= self._worlds.due:
            for index in self._worlds.time_out():
                self._server.send(self.workers[index].peer, {"kind": "stop"})
            self._advance()
            if self._worlds.over:
                self.end(self._worlds.over)

    def results(self, values: dict[int, Any]) -> list:
        members = self._worlds.generations.members
        if self._worlds.generations.finished and not self._worlds.over and all(one in values for one in members):
            return [values[one] for one in members]
        why = self._worlds.over or self.over or "a rank of the last generation returned nothing"
        if not self.failures:
            if self._worlds.generations.number == 0:
                raise TimeoutError(why)
            raise rank_error(-1, f"the elastic job ended: {why}")
        cause = explain(self.failures, lambda rank: self.places.get(rank, "its host"), None)
        failure = rank_error(cause.rank, f"{cause.text}\nthe elastic job ended: {why}", cause.__cause__)
        raise failure from failure.__cause__
