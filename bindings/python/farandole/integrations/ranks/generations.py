"""Generations: which workers of an elastic RayExecutor are the ranks of the next world.

The class is pure: no Ray, no clock, no network. A worker runs from the moment when it gets the function. It requests
a generation in init(), and again when its generation has failed or is to change. The next generation begins when
all remaining members of the last one have requested it (before the first: all running workers), as soon as they are
enough.

    generation 1   workers 0 1 2     worker 1 dies and worker 3 replaces it; 0 and 2 request at once and continue
    generation 2   workers 0 2       worker 3 requests; 0 and 2 are notified and request at their next commit
    generation 3   workers 0 2 3     rank 0 is the worker that has held the state longest
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Generations:
    """The state of one job: its running workers, its requests, and the members of its last generation."""

    def __init__(self, fewest: int, most: int, resets: int = 0):
        self.fewest, self.most, self.resets = fewest, most, resets  # resets: 0 means no limit
        self.number = 0  # of the generation that runs
        self.members: list[int] = []  # its remaining workers; the first has held the state longest
        self.over: str | None = None  # why no generation follows
        self.finished = False  # a worker has returned
        self._running: dict[int, Hashable] = {}  # worker: its node
        self._requested: list[int] = []

    def start(self, worker: int, node: Hashable) -> None:
        self._running[worker] = node

    def request(self, worker: int, has_state: bool = True) -> None:
        """The worker requests the next generation. Sets `over` if the job cannot continue.

        `has_state`: False if it has not received the state in the generation that it leaves. It is new again then,
        unless that was the first generation: its workers have the state with which the training begins.
        """
        if not has_state and self.number > 1 and worker in self.members:
            self.members.remove(worker)
            self._end_without_state()
        if worker not in self._requested:
            self._requested.append(worker)

    def end(self, worker: int, well: bool) -> None:
        """The worker has returned (`well`) or is lost. Sets `over` if the job cannot continue."""
        self._running.pop(worker, None)
        if worker in self._requested:
            self._requested.remove(worker)
        was_member = worker in self.members
        if well:
            self.finished = self.finished or was_member or not self.number
            return
        if was_member:
            self.members.remove(worker)
        if self.over:
            return
        if was_member and self.finished:
            self.over = "a rank was lost when others had finished"
        elif was_member and not self.members:
            self._end_without_state()
        elif not was_member and self.number == 0:
            self.over = "a worker failed before all had met in init()"

    def _end_without_state(self) -> None:
        if not self.members and not self.over:
            self.over = "no rank is left that holds the state"

    def awaited(self) -> list[int]:
        """The workers without a request, for which the next generation waits."""
        return [one for one in (self.members if self.number else self._running) if one not in self._requested]

    def has_newcomers(self) -> bool:
        """Whether members should request again, so that others can join them."""
        vacancies = self.most - len(self.members)
        if self.resets and self.number > self.resets:
            return False  # another generation would end the job
        return self.number > 0 and vacancies > 0 and any(one not in self.members for one in self._requested)

    def is_due(self) -> bool:
        """Whether a member, or any worker before the first generation, waits for the next generation."""
        return any(one in self._requested for one in self.members) or self.number == 0 and bool(self._requested)

    def next(self) -> list[int] | None:
        """Begins the next generation and returns its workers in rank order. None if it cannot begin yet."""
        if self.over or self.finished or not self._requested or self.awaited():
            return None
        others = [one for one in self._requested if one not in self.members]
        ranks = [*self.members, *others][: self.most]
        if len(ranks) < self.fewest:
            return None
        if self.number and self.resets and self.number > self.resets:
            self.over = f"the limit of {self.resets} resets is reached"
            return None
        self.number += 1
        self.members = self._by_node(ranks)
        self._requested = [one for one in self._requested if one not in ranks]
        return list(self.members)

    def _by_node(self, ranks: Sequence[int]) -> list[int]:
        """Makes ranks of one node consecutive. The first worker stays the first."""
        nodes = list(dict.fromkeys(self._running[one] for one in ranks))
        return sorted(ranks, key=lambda one: nodes.index(self._running[one]))
