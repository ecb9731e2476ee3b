"""Work: what torch.distributed waits for. Failures leave through wait() and through the future alone."""

import threading

import torch
import torch.distributed as dist

from ... import errors
from .order import Delivery

_NO_TIMEOUT = 0.0  # c10d's word for "as long as the operation itself may take"


def as_torch(error):
    """The same failure as programs written for torch.distributed expect it: a DistBackendError too."""
    kind = getattr(dist, "DistBackendError", RuntimeError)
    return errors.also(type(error), kind)(*error.fields())


class Work(dist.Work if hasattr(dist, "Work") else dist._Work):
    """One call's operations on their way, and what to do with their results: copy them to where they belong."""

    def __init__(self, pendings, tensors, finish=None, origin=None):
        super().__init__()
        self._pendings = pendings
        self._tensors = tensors
        self._finish = finish
        self._lock = threading.Lock() if finish is not None else None
        self._future = None
        self._origin = origin  # (group, its number there)

    def wait(self, timeout=None):
        seconds = timeout.total_seconds() if timeout is not None else _NO_TIMEOUT
        limit = seconds if seconds > 0 else -1.0
        try:
            for one in self._pendings:
                one.wait(limit)
        except errors.Error as error:
            raise as_torch(error) from None
        self._arrive()
        if self._lock is not None:
            self._take_results()
        return True

    def _arrive(self):
        """For works whose results lie on a device."""

    def _new_future(self):
        return torch.futures.Future()

    def _take_results(self):
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def is_completed(self):
        return all(one.done() for one in self._pendings)

    def exception(self):
        if not self.is_completed():
            return None
        failures = (one.failure() for one in self._pendings)
        first = next((failure for failure in failures if failure is not None), None)
        return as_torch(first) if first is not None else None

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def synchronize(self):
        self.wait()

    def block_current_stream(self):
        self.wait()

    def result(self):
        self.wait()
        return self._tensors

    def source_rank(self):
        self.wait()
        return self._pendings[0].source

    _source_rank = source_rank

    def get_future(self):
        """Completed by the process group's own thread. It fails as a future of C++ does, so that DDP notices."""
        if self._future is None:
            arrived = self._new_future()
            self._future = arrived.then(self._outcome)
            left = [len(self._pendings)]

            def one_less():
                left[0] -= 1
                if left[0] == 0 and self._origin is None:
                    arrived.set_result(None)
                elif left[0] == 0:
                    with Delivery(self._origin):
                        arrived.set_result(None)

            for one in self._pendings:
                one.then(one_less)
            if not self._pendings:
                arrived.set_result(None)
        return self._future

    def _outcome(self, _):
        self.wait()
        return self._tensors


class DoneWork(Work):
    """What a call that has blocked already gives back."""

    def __init__(self, tensors=(), source=-1):
        super().__init__((), list(tensors))
        self._source = source

    def wait(self, timeout=None):
        return True

    def source_rank(self):
        return self._source

    _source_rank = source_rank


def together(works):
    """One Work for several."""
    works = list(works)

    def finish():
        for work in works:
            work.wait()

    tensors = [tensor for work in works for tensor in work._tensors]
    return Work(tuple(one for work in works for one in work._pendings), tensors, finish)
