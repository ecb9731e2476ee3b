"""Coordinator: the actor that tells workers of an elastic RayExecutor their next world, and the client they use."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from ... import elastic_door, errors
from . import worker
from .generations import Generations
from .needed import ray_module
from .placement import number


class Coordinator:
    """Its calls are coroutines of one thread; nothing is asked again and again. The driver says who starts and ends."""

    def __init__(self, fewest: int, most: int, resets: int, timeout_s: float, start_timeout_s: float):
        import asyncio

        self._asyncio, self._timeout_s, self._start_timeout_s = asyncio, timeout_s, start_timeout_s
        self._generations = Generations(fewest, most, resets)
        self._facts: dict[int, worker.Facts] = {}
        self._places: dict[int, Sequence[str]] = {}
        self._seats: dict[int, tuple[int, int]] = {}  # worker: its last generation, and its rank there
        self._waiting: dict = {}  # worker: what its join() waits for
        self._news = asyncio.Event()  # of the generation that runs
        self._late = asyncio.Queue()
        self._timer = None

    async def start(self, index: int, facts: worker.Facts) -> None:
        self._facts[index] = facts
        self._generations.start(index, facts.node)

    async def join(self, index: int, places: Sequence[str]) -> tuple:
        """("world", seat, place, key), or ("end", why). `places`: where others could meet this worker, if it becomes
        rank 0: those of its host, and those of others."""
        self._places[index] = places
        answer = self._waiting[index] = self._asyncio.get_running_loop().create_future()
        self._generations.asked(index)
        self._go_on()
        return await answer

    async def news(self) -> int:
        """Returns when others wait to join the generation that runs."""
        await self._news.wait()
        return elastic_door.ADDED

    async def end(self, index: int, well: bool) -> tuple:
        """A worker has returned or is lost. Its last generation and rank in it (0 and None: it had none), and why the
        job cannot go on, if so."""
        self._generations.end(index, well)
        self._waiting.pop(index, None)
        self._go_on()
        return *self._seats.get(index, (0, None)), self._generations.over

    async def late(self) -> list[int]:
        """Returns with the workers that have kept the others waiting for too long."""
        return await self._late.get()

    async def ranks(self) -> list[int]:
        """The workers of the last generation, without those that were lost since, in rank order."""
        return self._generations.members

    def _go_on(self) -> None:
        ranks = self._generations.next()
        if ranks:
            self._begin(ranks)
        if self._generations.over or self._generations.finished:
            why = self._generations.over or "others have finished"
            for index in list(self._waiting):
                self._waiting.pop(index).set_result(("end", why))
        if self._generations.has_newcomers():
            self._news.set()
        self._watch(anew=bool(ranks))

    def _begin(self, ranks: Sequence[int]) -> None:
        facts = [self._facts[one] for one in ranks]
        place = self._places[ranks[0]][len({one.host for one in facts}) > 1]
        key = worker.Secret(secrets.token_hex(32))  # each generation has its own
        for index, seat in zip(ranks, number([one.node for one in facts])):
            self._seats[index] = (self._generations.number, seat.rank)
            self._waiting.pop(index).set_result(("world", seat, place, key))
        self._news.set()  # who asks there asks in vain
        self._news = self._asyncio.Event()

    def _watch(self, anew: bool) -> None:
        """Somebody waits: not for ever."""
        if self._timer and (anew or not self._generations.is_due()):
            self._timer.cancel()
            self._timer = None
        if self._timer is None and self._generations.is_due():
            patience = self._timeout_s if self._generations.number else self._start_timeout_s
            self._timer = self._asyncio.get_running_loop().call_later(patience, self._be_late)

    def _be_late(self) -> None:
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
        self._go_on()


class Door:
    """The worker's way to the coordinator, as elastic_door.Door is the way to `farandole run`."""

    def __init__(self, coordinator, index: int):
        self._coordinator, self._index, self._pid = coordinator, index, os.getpid()
        self._news = None
        self._ray = ray_module("farandole.integrations.ray.RayExecutor")

    def next_world(self, lost_rank: int = -1) -> dict:
        here = worker.look()
        places = [worker.choose_place(hosts, here.address) for hosts in ([here.host], [here.host, "another"])]
        word, *said = self._ray.get(self._coordinator.join.remote(self._index, places))
        if word == "end":
            raise errors.ShutDownError(f"the elastic job ends: {said[0]}")
        seat, place, key = said
        self._news = self._coordinator.news.remote() if seat.rank == 0 else None  # the others go by what rank 0 hears
        return dict(
            rank=seat.rank,
            size=seat.size,
            local_rank=seat.local_rank,
            local_size=seat.local_size,
            rendezvous=place,
            job_key=key.text,
        )

    def news(self) -> int:
        """elastic_door.ADDED where others wait to join. Does not block."""
        if self._news is None or not self._ray.wait([self._news], timeout=0)[0]:
            return 0
        news, self._news = self._ray.get(self._news), None
        return news
