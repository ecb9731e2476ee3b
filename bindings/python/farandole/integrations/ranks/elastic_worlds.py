"""ElasticWorlds: the worlds of an elastic job, one for each generation, with their keys, addresses and time limits.

The class uses no job system, no network and no clock: callers pass the time, deliver the answers, and call time_out()
when `due` has passed.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .generations import Generations
from .placement import Member, number
from .worlds import Secret


@dataclass(frozen=True)
class Place:
    """Where a worker runs. `node` groups local ranks; `host` is rendezvous.host_identity() there."""

    node: Hashable
    host: str


@dataclass(frozen=True)
class World:
    """A worker's place in the world that begins, and what it needs to join that world."""

    generation: int
    member: Member
    rendezvous: str
    key: Secret


class ElasticWorlds:
    """Workers start(), then join() for each generation, and end(). advance() must follow, and returns answers."""

    def __init__(self, fewest: int, most: int, resets: int, timeout_s: float, start_timeout_s: float):
        self.generations = Generations(fewest, most, resets)
        self.due: float | None = None  # when time_out() is to be called
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._places: dict[int, Place] = {}
        self._choices: dict[int, Sequence[str]] = {}
        self._waiting: dict[int, None] = {}  # the workers that wait for an answer, in their order
        self._last: dict[int, tuple[int, int]] = {}  # worker: its last generation, and its rank there

    def start(self, worker: int, place: Place) -> None:
        """Adds a worker that has been given the function."""
        self._places[worker] = place
        self.generations.start(worker, place.node)

    def join(self, worker: int, choices: Sequence[str], has_state: bool = True) -> None:
        """The worker waits for the next generation.

        `choices`: worlds.both_rendezvous() there. `has_state`: False if it belonged to a generation and has not
        received the state there.
        """
        self._choices[worker] = choices
        self._waiting[worker] = None
        self.generations.request(worker, has_state)

    def end(self, worker: int, well: bool) -> tuple[int, int | None]:
        """Removes a worker that has returned (`well`) or was lost. Returns its last generation and its rank there.

        They are 0 and None if it had no rank. `over` may be set then.
        """
        self.generations.end(worker, well)
        self._waiting.pop(worker, None)
        return self._last.get(worker, (0, None))

    @property
    def over(self) -> str | None:
        """Why no generation follows; None if one may follow."""
        return self.generations.over

    def advance(self, now: float) -> list[tuple[int, World | str]]:
        """Begins the next generation if it can begin. Returns (worker, its world, or why the job ends)."""
        ranks = self.generations.next()
        answers: list[tuple[int, World | str]] = self._begin(ranks) if ranks else []
        if self.generations.over or self.generations.finished:
            why = self.generations.over or "others have finished"
            answers += [(worker, why) for worker in self._waiting]
            self._waiting.clear()
        if ranks or not self.generations.is_due():
            self.due = None
        if self.due is None and self.generations.is_due():
            self.due = now + (self._timeout_s if self.generations.number else self._start_timeout_s)
        return answers

    def _begin(self, ranks: Sequence[int]) -> list[tuple[int, World | str]]:
        places = [self._places[one] for one in ranks]
        rendezvous = self._choices[ranks[0]][len({one.host for one in places}) > 1]
        key = Secret(secrets.token_hex(32))  # each generation has its own
        answers: list[tuple[int, World | str]] = []
        for worker, member in zip(ranks, number([one.node for one in places])):
            self._last[worker] = (self.generations.number, member.rank)
            self._waiting.pop(worker, None)
            answers.append((worker, World(self.generations.number, member, rendezvous, key)))
        return answers

    def time_out(self) -> list[int]:
        """Ends the wait for a generation. Returns the workers that did not join in time, which must be ended."""
        self.due = None
        late = self.generations.awaited()
        if late and not self.generations.number:
            self.generations.over = (
                f"{len(late)} of the workers did not come to init() within {self._start_timeout_s:g} s"
            )
        elif not late:
            self.generations.over = f"there were fewer than {self.generations.fewest} workers for {self._timeout_s:g} s"
        return late
