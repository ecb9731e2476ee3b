"""Collectives that are started in callbacks of futures: where their order among others is chance, that is found out.

A group's collectives run in the order in which they are started, which must be the same on all ranks. What one thread
starts has an order; what the callback of a future starts comes whenever that future is done. So if anything else was
started since the operation of the future was, another rank may have it the other way round.
"""

import threading

from ... import errors

# Of each thread that runs callbacks now: [group, the number of the group's last operation that surely came before].
_delivering = {}

_ADVICE = (
    "a collective was started in the callback of another one's future, while others had been started since: which of "
    "them comes first is chance, and may differ between ranks. For a communication hook of DistributedDataParallel "
    "(PowerSGD) with several buckets register farandole.torch.distributed.in_order(hook), or set bucket_cap_mb so "
    "that there is one"
)


class Delivery:
    """While a future's callbacks run in this thread."""

    def __init__(self, origin):
        self._origin = list(origin)
        self._thread = threading.get_ident()

    def __enter__(self):
        self._before = _delivering.get(self._thread)
        _delivering[self._thread] = self._origin

    def __exit__(self, *_):
        if self._before is None:
            del _delivering[self._thread]
        else:
            _delivering[self._thread] = self._before


def check(group, started):
    """A collective of the group is about to start, after so many others."""
    origin = _delivering.get(threading.get_ident())
    if origin is None or origin[0] is not group:
        return
    if origin[1] != started:
        group.give_up(_ADVICE)
        raise errors.InvalidArgumentError(_ADVICE)
    origin[1] = started + 1


def is_delivering():
    return bool(_delivering)


def in_order(hook):
    """A communication hook for DistributedDataParallel that finishes one bucket before the next is begun.

    For hooks that start collectives in callbacks, as PowerSGD does: model.register_comm_hook(state,
    in_order(powerSGD_hook)).
    """

    def one_by_one(state, bucket):
        future = hook(state, bucket)
        future.wait()
        return future

    one_by_one.__name__ = one_by_one.__qualname__ = getattr(hook, "__name__", "hook")
    return one_by_one
