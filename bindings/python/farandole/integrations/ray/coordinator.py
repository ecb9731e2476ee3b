"""Coordinator: the actor that gives workers of an elastic RayExecutor their next world, and the workers' client."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from ... import elastic_client, errors
from . import worker
from .generations import Generations
from .needed import ray_module
from .placement import number


class Coordinator:
    """Begins generations. Its calls are coroutines of one thread, and none of them polls.

    The driver calls start() and end() for each worker; the workers call join().
    """

    def __init__(self, fewest: int, most: int, resets: int, timeout_s: float, start_timeout_s: float):
        import asyncio

        self._asyncio, self._timeout_s, self._start_timeout_s = asyncio, timeout_s, start_timeout_s
        self._generations = Generations(fewest, most, resets)
        self._facts: dict[int, worker.Facts] = {}
        self._rendezvous_choices: dict[int, Sequence[str]] = {}
        self._members: dict[int, tuple[int, int]] = {}  # worker: its last generation, and its rank there
        self._waiting: dict = {}  # worker: the future that its join() awaits
        self._changes = asyncio.Event()  # set when others wait to join the running generation
        self._late = asyncio.Queue()
        self._timer = None

    async def start(self, index: int, facts: worker.Facts) -> None:
        """Adds a worker that has been given the function."""
        self._facts[index] = facts
        self._generations.start(index, facts.node)

    async def join(self, index: int, rendezvous_choices: Sequence[str]) -> tuple:
        """Returns ("world", member, rendezvous, key) when a generation with this worker begins, or ("end", why).

        `rendezvous_choices`: the addresses to use if this worker becomes rank 0, for ranks of its host only and for
        ranks of several hosts.
        """
        self._rendezvous_choices[index] = rendezvous_choices
        answer = self._waiting[index] = self._asyncio.get_running_loop().create_future()
        self._generations.request(index)
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
        self._generations.end(index, well)
        self._waiting.pop(index, None)
        self._advance()
        return *self._members.get(index, (0, None)), self._generations.over

    async def late(self) -> list[int]:
        """Returns the workers that did not join in time, when there are any."""
        return await self._late.get()

    async def ranks(self) -> list[int]:
        """The workers of the last generation, without those that were lost since, in rank order."""
        return self._generations.members

    def _advance(self) -> None:
        ranks = self._generations.next()
        if ranks:
            self._begin(ranks)
        if self._generations.over or self._generations.finished:
            why = self._generations.over or "others have finished"
            for index in list(self._waiting):
                self._waiting.pop(index).set_result(("end", why))
        if self._generations.has_newcomers():
            self._changes.set()
        self._watch(anew=bool(ranks))

    def _begin(self, ranks: Sequence[int]) -> None:
        facts = [self._facts[one] for one in ranks]
        rendezvous = self._rendezvous_choices[ranks[0]][len({one.host for one in facts}) > 1]
        key = worker.Secret(secrets.token_hex(32))  # each generation has its own
        for index, member in zip(ranks, number([one.node for one in facts])):
            self._members[index] = (self._generations.number, member.rank)
            self._waiting.pop(index).set_result(("world", member, rendezvous, key))
        self._changes.set()  # completes the calls of the generation before
        self._changes = self._asyncio.Event()

    def _watch(self, anew: bool) -> None:
        """Limits the time that workers wait for a generation."""
        if self._timer and (anew or not self._generations.is_due()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._generations.is_due():
            timeout_s = self._timeout_s if self._generations.number else self._start_timeout_s
            self._timer = self._asyncio.get_running_loop().call_later(timeout_s, self._time_out)

    def _time_out(self) -> None:
        self._timer = None
        late = self._generations.awaited()
        if late:
            self._late.put_nowait(late)
        if late and not self._generations.number:
            self._generations.over = (
                f"{len(late)} of the workers did not come to init() within {self._start_timeout_s:g} s"
            )
        elif not late:
            self._generations.over = (
                f"there were fewer than {self._generations.fewest} workers for {self._timeout_s:g} s"
            )
        self._advance()


class CoordinatorClient:
    """The worker's client of the coordinator, with the interface of elastic_client.LauncherClient."""

    def __init__(self, coordinator, index: int):
        self._coordinator, self._index, self._pid = coordinator, index, os.getpid()
        self._changes = None  # rank 0's call of membership_changes(), which is in flight
        self._ray = ray_module("farandole.integrations.ray.RayExecutor")

    def next_world(self, lost_rank: int = -1) -> dict:
        """As LauncherClient.next_world. `lost_rank` is not needed: Ray reports lost workers to the driver."""
        here = worker.look()
        choices = [worker.choose_rendezvous(hosts, here.address) for hosts in ([here.host], [here.host, "another"])]
        kind, *answer = self._ray.get(self._coordinator.join.remote(self._index, choices))
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
