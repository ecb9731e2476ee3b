"""Coordinator: the actor that gives workers of an elastic RayExecutor their next world, and the workers' client."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ... import elastic_client, errors
from ..ranks.elastic_worlds import ElasticWorlds, Place, World
from ..ranks.worlds import both_rendezvous
from . import worker
from .needed import ray_module


class Coordinator:
    """Begins generations. Its calls are coroutines of one thread, and none of them polls.

    The driver calls start() and end() for each worker; the workers call join().
    """

    def __init__(self, fewest: int, most: int, resets: int, timeout_s: float, start_timeout_s: float):
        import asyncio

        self._asyncio = asyncio
        self._worlds = ElasticWorlds(fewest, most, resets, timeout_s, start_timeout_s)
        self._waiting: dict = {}  # worker: the future that its join() awaits
        self._changes = asyncio.Event()  # set when others wait to join the running generation
        self._late = asyncio.Queue()
        self._timer = None

    async def start(self, index: int, facts: worker.Facts) -> None:
        """Adds a worker that has been given the function."""
        self._worlds.start(index, Place(facts.node, facts.host))

    async def join(self, index: int, rendezvous_choices: Sequence[str], has_state: bool = True) -> tuple:
        """Returns ("world", member, rendezvous, key) when a generation with this worker begins, or ("end", why).

        `rendezvous_choices`: the addresses to use if this worker becomes rank 0, for ranks of its host only and for
        ranks of several hosts. `has_state`: see ElasticWorlds.join().
        """
        answer = self._waiting[index] = self._asyncio.get_running_loop().create_future()
        self._worlds.join(index, rendezvous_choices, has_state)
        self._advance()
        return await answer

    async def membership_changes(self) -> int:
        """Returns when others wait to join the running generation."""
        await self._changes.wait()
        return elastic_client.ADDED

    async def end(self, index: int, well: bool) -> tuple:
        """Removes a worker that has returned (`well`) or was lost.

        Returns its last generation, its rank there (0 and None if it had none), and the reason why the job cannot
        continue, or None.
        """
        last = self._worlds.end(index, well)
        self._waiting.pop(index, None)
        self._advance()
        return *last, self._worlds.over

    async def late(self) -> list[int]:
        """Returns the workers that did not join in time, when there are any."""
        return await self._late.get()

    async def ranks(self) -> list[int]:
        """The workers of the last generation, without those that were lost since, in rank order."""
        return self._worlds.generations.members

    def _advance(self) -> None:
        loop = self._asyncio.get_running_loop()
        begins = False
        for index, answer in self._worlds.advance(loop.time()):
            if isinstance(answer, World):
                begins = True
                reply = ("world", answer.member, answer.rendezvous, answer.key)
            else:
                reply = ("end", answer)
            self._waiting.pop(index).set_result(reply)
        if begins:
            self._changes.set()  # completes the calls of the generation before
            self._changes = self._asyncio.Event()
        if self._worlds.generations.has_newcomers():
            self._changes.set()
        if self._timer:
            self._timer.cancel()
        due = self._worlds.due
        self._timer = None if due is None else loop.call_at(due, self._time_out)

    def _time_out(self) -> None:
        late = self._worlds.time_out()
        if late:
            self._late.put_nowait(late)
        self._advance()


class CoordinatorClient:
    """The worker's client of the coordinator, with the interface of elastic_client.LauncherClient."""

    def __init__(self, coordinator, index: int):
        self.has_state = True
        self._coordinator, self._index, self._pid = coordinator, index, os.getpid()
        self._changes = None  # rank 0's call of membership_changes(), which is in flight
        self._ray = ray_module("farandole.integrations.ray.RayExecutor")

    def next_world(self, lost_rank: int = -1) -> dict:
        """As LauncherClient.next_world. `lost_rank` is not needed: Ray reports lost workers to the driver."""
        choices = both_rendezvous(worker.look().address)
        kind, *answer = self._ray.get(self._coordinator.join.remote(self._index, choices, self.has_state))
        if kind == "end":
            raise errors.ShutDownError(f"the elastic job ends: {answer[0]}")
        member, rendezvous, key = answer
        # Only rank 0 requests changes. It broadcasts them to the other ranks.
        self._changes = self._coordinator.membership_changes.remote() if member.rank == 0 else None
        return dict(
            rank=member.rank,
            size=member.size,
            local_rank=member.local_rank,
            local_size=member.local_size,
            rendezvous=rendezvous,
            job_key=key.text,
        )

    def membership_changes(self) -> int:
        """elastic_client.ADDED if others wait to join, else 0. Does not block."""
        if self._changes is None or not self._ray.wait([self._changes], timeout=0)[0]:
            return 0
        changes, self._changes = self._ray.get(self._changes), None
        return changes

    def has_reported_removal(self, limit_s: float) -> bool:
        """False: the coordinator reports no rank that leaves."""
        return False
