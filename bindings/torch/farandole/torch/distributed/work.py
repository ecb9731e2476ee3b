"""Work: the object for which torch.distributed waits. Failures are raised by wait() and by the future only."""

import threading
import time

import torch.distributed as dist

from ... import errors
from .futures import WorkFuture

_NO_TIMEOUT = 0.0  # c10d passes it for "no limit except the operation's own"


def as_torch(error):
    """The same failure with the class that programs for torch.distributed expect: it is also a DistBackendError."""
    kind = getattr(dist, "DistBackendError", RuntimeError)
    return errors.also(type(error), kind)(*error.fields())


class Work(dist.Work if hasattr(dist, "Work") else dist._Work):
    """The operations of one call, and the function that stores their results."""

    def __init__(self, pendings, tensors, finish=None, origin=None):
        super().__init__()
        self._pendings = pendings
        self._tensors = tensors
        self._finish = finish
        self._lock = threading.Lock() if finish is not None else None
        self._future = None
        self._origin = origin  # (group, its number there)

    def wait(self, timeout=None):
        """Blocks until the operations are done, stores their results, and returns True. Raises their failure.

        `timeout`: a timedelta until TimeoutError. The operations then stay in flight, and wait() can be called again.
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
        """Orders results on a device after the operation. Does nothing for the CPU."""

    def _new_future(self):
        return WorkFuture(self)

    def _take_results(self):
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def is_completed(self):
        """Whether all operations have completed or failed. Does not block."""
        return all(one.done() for one in self._pendings)

    def exception(self):
        """The first failure as an exception; None if there is none yet."""
        if not self.is_completed():
            return None
        failures = (one.failure() for one in self._pendings)
        first = next((failure for failure in failures if failure is not None), None)
        return as_torch(first) if first is not None else None

    def is_success(self):
        """Whether all operations have completed without a failure."""
        return self.is_completed() and self.exception() is None

    def synchronize(self):
        """The same as wait() without a timeout."""
        self.wait()

    def block_current_stream(self):
        """The same as wait() without a timeout."""
        self.wait()

    def result(self):
        """Waits, and returns the list of result tensors."""
        self.wait()
        return self._tensors

    def source_rank(self):
        """Waits, and returns the rank in the group that sent the received message."""
        self.wait()
        return self._pendings[0].source

    _source_rank = source_rank

    def get_future(self):
        """A torch.futures.Future whose value is the list of result tensors."""
        if self._future is None:
            self._future = self._new_future()
        return self._future


class DoneWork(Work):
    """The Work of a call that has blocked."""

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
