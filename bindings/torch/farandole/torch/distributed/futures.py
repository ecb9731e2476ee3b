"""Futures of works: one that a waiting thread can complete itself, and one for results on a device."""

import contextlib

import torch

from ... import errors
from .order import Delivery


class _Failed:
    """The value of a future whose work failed.

    C++ code such as DistributedDataParallel pickles a Python value to find its tensors, and pickling this one raises
    the error.
    """

    def __init__(self, error):
        self._error = error

    def __reduce_ex__(self, protocol):
        raise self._error

    def unwrap(self):
        raise self._error


def _unwrap(value):
    return value.unwrap() if isinstance(value, _Failed) else value


def _delivery(work):
    return contextlib.nullcontext() if work._origin is None else Delivery(work._origin)


class WorkFuture(torch.futures.Future):
    """A future that the process group's completion thread completes, or a thread that calls wait() before.

    Such a thread withdraws the callback from the completion thread and runs the operation itself, as Work.wait() does.
    That saves a switch between threads.
    """

    def __init__(self, work):
        super().__init__()
        self._unsettled = [work]
        self._pendings = list(work._pendings)
        self._unfinished = list(self._pendings)
        self._set_unwrap_func(_unwrap)
        for one in self._pendings:
            one.then(self._one_less)
        if not self._pendings:
            self._settle()

    def wait(self):
        for one in self._pendings:
            if one.withdraw():
                with contextlib.suppress(errors.Error):  # the work reports it
                    one.wait()
                self._one_less()
        return super().wait()

    def _one_less(self):
        self._unfinished.pop()
        if not self._unfinished:
            self._settle()

    def _settle(self):
        """Completes the future. Several threads may call it; only the first call has an effect."""
        try:
            work = self._unsettled.pop()
        except IndexError:
            return
        self._pendings = ()  # a completed future keeps only the tensors of its work
        try:
            work.wait()
            value = work._tensors
        except Exception as error:
            value = _Failed(error)
        with _delivery(work):
            self.set_result(value)


def device_future(work, device):
    """A future that the completion thread completes.

    The callback runs on a stream of its own, so that no other stream waits for it.
    """
    arrived = torch.futures.Future(devices=[device])
    outcome = arrived.then(lambda _: work.result())
    unfinished = list(work._pendings)

    def one_less():
        unfinished.pop()
        if not unfinished:
            with _delivery(work):
                arrived.set_result(None)

    for one in work._pendings:
        one.then(one_less)
    return outcome
