"""ray_logger: values that rank 0 logs while a RayExecutor runs a function, for the driver's callbacks.

from horovod.ray import ray_logger   # or farandole.integrations.ray
ray_logger.log({"loss": loss})       # in the function that runs; does nothing on other ranks or without callbacks
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
_buffer = None  # an actor _LogBuffer, while this worker runs a function for a driver with callbacks
_sent = 0  # the number of values that this function has logged
_sender = ""  # identifies this call of the function in the buffer


def log(info_dict: Any) -> None:
    """Passes a value to all callbacks of the run() or execute() that called this function. Does not wait for them."""
    global _sent
    if _buffer is not None and core.last_rank() == 0:
        _buffer.append.remote(_sender, _sent, info_dict)
        _sent += 1


@contextlib.contextmanager
def forwarding(buffer):
    """Around the function in the worker. When it exits, the buffer has received all logged values."""
    global _buffer, _sent, _sender
    _buffer, _sent, _sender = buffer, 0, secrets.token_hex(8)
    try:
        yield
    finally:
        _buffer = None
        if _sent:
            ray_module("farandole.integrations.ray.RayExecutor").get(buffer.wait_for.remote(_sender, _sent))


class _LogBuffer:
    """The actor between the worker and the driver.

    Its calls are coroutines of one thread, so that one can wait for another. Ray may begin them in any order, so the
    values are numbered.
    """

    def __init__(self):
        import asyncio

        self._early = {}  # (sender, number): a value that arrived before its predecessors
        self._next = {}  # sender: the number of its next value
        self._values = []
        self._arrived, self._changed = asyncio.Event(), asyncio.Condition()

    async def append(self, sender: str, number: int, value: Any) -> None:
        self._early[sender, number] = value
        while (sender, self._next.get(sender, 0)) in self._early:
            number = self._next.get(sender, 0)
            self._values.append(self._early.pop((sender, number)))
            self._next[sender] = number + 1
            self._arrived.set()
        async with self._changed:
            self._changed.notify_all()

    async def wait_for(self, sender: str, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._next.get(sender, 0) >= count)

    async def wait(self) -> list:
        """Returns new values when there are any."""
        await self._arrived.wait()
        return self._take()

    async def rest(self) -> list:
        """Returns the values that wait() has not returned, and makes a pending wait() return."""
        values = self._take()
        self._arrived.set()
        return values

    def _take(self) -> list:
        self._arrived.clear()
        values, self._values = self._values, []
        return values


class Listener:
    """In the driver: calls `callbacks` with every value, in the order in which rank 0 logged them."""

    def __init__(self, callbacks: Sequence[Callable]):
        self._ray, self._callbacks = ray_module("farandole.integrations.ray.RayExecutor"), list(callbacks)
        self.buffer = beside_driver(self._ray, _LogBuffer)
        self.values = self.buffer.wait.remote()  # a reference that is ready when there are values

    def take(self) -> None:
        """Calls the callbacks with the values that have arrived."""
        values = self._ray.get(self.values)
        self.values = self.buffer.wait.remote()
        self._deliver(values)

    def end(self) -> None:
        """Calls the callbacks with the remaining values, after the functions have returned."""
        try:
            rest = self.buffer.rest.remote()
            self._deliver(self._ray.get(self.values) + self._ray.get(rest))
        finally:
            self._ray.kill(self.buffer)

    def serve(self, references: list) -> None:
        """Delivers values in a thread until `references` are ready. Failures of callbacks are logged."""

        def work():
            waiting = list(references)
            try:
                while waiting:
                    ready, _ = self._ray.wait([*waiting, self.values], num_returns=1)
                    waiting = [one for one in waiting if one not in ready]
                    if self.values in ready:
                        self.take()
                self.end()
            except Exception:
                _log.exception("a callback of run_remote failed; no callback is called any more")

        threading.Thread(target=work, name="farandole.ray callbacks", daemon=True).start()

    def _deliver(self, values: list) -> None:
        for value in values:
            for callback in self._callbacks:
                callback(value)
