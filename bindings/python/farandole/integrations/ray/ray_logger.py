"""ray_logger: what rank 0 logs while a RayExecutor runs a function, on its way to the driver's callbacks.

from horovod.ray import ray_logger       # or farandole.integrations.ray
ray_logger.log({"loss": loss})           # in the function that runs; on other ranks, and where nobody listens, nothing
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Sequence
from typing import Any, Callable

from ... import core
from .needed import beside_driver, ray_module

_log = logging.getLogger("farandole.ray")
_board = None  # an actor _Board, while this worker runs a function that somebody listens to
_told = 0  # how many values it was given by this function
_sender = ""  # its name there


def log(info_dict: Any) -> None:
    """Gives a value to all callbacks of the run() or execute() that called this function. Does not wait for them."""
    global _told
    if _board is not None and core.last_rank() == 0:
        _board.tell.remote(_sender, _told, info_dict)
        _told += 1


@contextlib.contextmanager
def telling(board):
    """In the worker, around the function: what it logs has arrived when this ends."""
    global _board, _told, _sender
    _board, _told, _sender = board, 0, secrets.token_hex(8)
    try:
        yield
    finally:
        _board = None
        if _told:
            ray_module("farandole.integrations.ray.RayExecutor").get(board.wait_for.remote(_sender, _told))


class _Board:
    """The actor between them. Its calls are coroutines of one thread, so that one may wait for another's news. They
    begin in any order: values are numbered."""

    def __init__(self):
        import asyncio

        self._early = {}  # (sender, number): a value whose turn has not come
        self._next = {}  # of each sender
        self._values = []
        self._news, self._changed = asyncio.Event(), asyncio.Condition()

    async def tell(self, sender: str, number: int, value: Any) -> None:
        self._early[sender, number] = value
        while (sender, self._next.get(sender, 0)) in self._early:
            number = self._next.get(sender, 0)
            self._values.append(self._early.pop((sender, number)))
            self._next[sender] = number + 1
            self._news.set()
        async with self._changed:
            self._changed.notify_all()

    async def wait_for(self, sender: str, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._next.get(sender, 0) >= count)

    async def hear(self) -> list:
        await self._news.wait()
        return self._take()

    async def rest(self) -> list:
        """What hear() has not taken; it waits no more."""
        values = self._take()
        self._news.set()
        return values

    def _take(self) -> list:
        self._news.clear()
        values, self._values = self._values, []
        return values


class Listener:
    """In the driver: calls `callbacks` with every value in the order in which rank 0 logged them."""

    def __init__(self, callbacks: Sequence[Callable]):
        self._ray, self._callbacks = ray_module("farandole.integrations.ray.RayExecutor"), list(callbacks)
        self.board = beside_driver(self._ray, _Board)
        self.heard = self.board.hear.remote()  # ready when there are values

    def take(self) -> None:
        """Calls the callbacks with what has been heard."""
        values = self._ray.get(self.heard)
        self.heard = self.board.hear.remote()
        self._tell(values)

    def end(self) -> None:
        """The same with what is left, when the functions have come back."""
        try:
            rest = self.board.rest.remote()
            self._tell(self._ray.get(self.heard) + self._ray.get(rest))
        finally:
            self._ray.kill(self.board)

    def serve(self, references: list) -> None:
        """Does all this in a thread of its own until the functions have come back. Failures of callbacks are logged."""

        def work():
            waiting = list(references)
            try:
                while waiting:
                    ready, _ = self._ray.wait([*waiting, self.heard], num_returns=1)
                    waiting = [one for one in waiting if one not in ready]
                    if self.heard in ready:
                        self.take()
                self.end()
            except Exception:
                _log.exception("a callback of run_remote failed; it and the others are called no more")

        threading.Thread(target=work, name="farandole.ray callbacks", daemon=True).start()

    def _tell(self, values: list) -> None:
        for value in values:
            for callback in self._callbacks:
                callback(value)
