"""Generations: which workers of an elastic RayExecutor are the ranks of the next world. Pure: no Ray, no clock, no
network.

A worker is running from the moment when it is given the function. It asks for a generation when it comes to init(), and
again when the one it belonged to has failed or is to change. The next generation begins when all asked that can be
waited for: the members of the last one that are left (before the first: all that are running), as soon as they are
enough.

    generation 1   workers 0 1 2     worker 1 dies, worker 3 comes in its place; 0 and 2 have asked, and go on
    generation 2   workers 0 2       3 asks; 0 and 2 are told, and ask at their next commit
    generation 3   workers 0 2 3     the first is who has held the state longest
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class Generations:
    def __init__(self, fewest: int, most: int, resets: int = 0):
        self.fewest, self.most, self.resets = fewest, most, resets  # no limit of resets: 0
        self.number = 0  # of the generation that runs
        self.members: list[int] = []  # its workers that are left, who has held the state longest first
        self.over: str | None = None  # why no generation follows
        self.finished = False  # somebody has returned
        self._running: dict[int, Hashable] = {}  # worker: its node
        self._asked: list[int] = []

    def start(self, worker: int, node: Hashable) -> None:
        self._running[worker] = node

    def asked(self, worker: int) -> None:
        if worker not in self._asked:
            self._asked.append(worker)

    def end(self, worker: int, well: bool) -> None:
        """It has returned, or it is lost. `over` tells whether the job can go on."""
        self._running.pop(worker, None)
        if worker in self._asked:
            self._asked.remove(worker)
        if well:
            self.finished = True
            return
        was_member = worker in self.members
        if was_member:
            self.members.remove(worker)
        if self.over:
            return
        if was_member and self.finished:
            self.over = "a rank was lost when others had finished"
        elif was_member and not self.members:
            self.over = "no rank is left that holds the state"
        elif not was_member and self.number == 0:
            self.over = "a worker failed before all had met in init()"

    def awaited(self) -> list[int]:
        """Who has not asked, and is waited for."""
        return [one for one in (self.members if self.number else self._running) if one not in self._asked]

    def has_newcomers(self) -> bool:
        """Whether members should ask, for others to join them."""
        room = self.most - len(self.members)
        return self.number > 0 and room > 0 and any(one not in self.members for one in self._asked)

    def is_due(self) -> bool:
        """Whether somebody waits for a generation that members are to begin."""
        return any(one in self._asked for one in self.members) or self.number == 0 and bool(self._asked)

    def next(self) -> list[int] | None:
        """The workers of the generation that begins now, in rank order; None where some are still waited for."""
        if self.over or self.finished or not self._asked or self.awaited():
            return None
        others = [one for one in self._asked if one not in self.members]
        ranks = [*self.members, *others][: self.most]
        if len(ranks) < self.fewest:
            return None
        if self.number and self.resets and self.number > self.resets:
            self.over = f"the limit of {self.resets} resets is reached"
            return None
        self.number += 1
        self.members = self._by_node(ranks)
        self._asked = [one for one in self._asked if one not in ranks]
        return list(self.members)

    def _by_node(self, ranks: Sequence[int]) -> list[int]:
        """Ranks of one node are neighbours; the first stays the first."""
        nodes = list(dict.fromkeys(self._running[one] for one in ranks))
        return sorted(ranks, key=lambda one: nodes.index(self._running[one]))
