"""Work: what torch.distributed waits for. Failures leave through wait() and through the future alone."""

import threading
import time

import torch.distributed as dist

from ... import errors
from .futures import WorkFuture

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
        """With a timeout: a TimeoutError when it has passed.

        The operations stay in flight, and wait() can be called again.
        """
        seconds = timeout.total_seconds() if timeout is not None else _NO_TIMEOUT
        try:
            if seconds > 0:
                self._wait_for(seconds)
            else:
                for one in self._pendings:
                    one.wait()
        except errors.Error as error:
            raise as_torch(error) from None
        self._arrive()
        if self._lock is not None:
            self._take_results()
        return True

    def _wait_for(self, seconds):
        end = time.monotonic() + seconds
        for one in self._pendings:
            one.wait_for(max(end - time.monotonic(), 0.0), seconds)

    def _arrive(self):
        """For works whose results lie on a device."""

    def _new_future(self):
        return WorkFuture(self)

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
        if self._future is None:
            self._future = self._new_future()
        return self._future


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
