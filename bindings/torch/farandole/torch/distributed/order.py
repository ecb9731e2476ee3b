"""Detects collectives whose order is not defined because callbacks of futures start them.

A group's collectives run in the order of their start, which must be equal on all ranks. The collectives of one thread
have an order. A callback, however, starts its collective whenever its future completes. If another collective was
started since the future's operation, another rank may have the opposite order.
"""

import threading

from ... import errors

# {thread that runs callbacks: [group, number of the last operation of the group that is known to precede them]}
_delivering = {}

_ADVICE = (
    "a collective was started in the callback of another one's future, while others had been started since: their "
    "order is undefined and may differ between ranks. For a communication hook of DistributedDataParallel (PowerSGD) "
    "with several buckets register farandole.torch.distributed.in_order(hook), or set bucket_cap_mb so that there is "
    "one"
)


class Delivery:
    """A context around the callbacks of a future in this thread."""

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
    """Raises InvalidArgumentError if the order of the group's next collective is not defined.

    `started`: the number so far.
    """
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
    """Wraps a communication hook for DistributedDataParallel so that one bucket ends before the next one begins.

    It is for hooks that start collectives in callbacks, as PowerSGD does: model.register_comm_hook(state,
    in_order(powerSGD_hook)).
    """

    def one_by_one(state, bucket):
        future = hook(state, bucket)
        future.wait()
        return future

    one_by_one.__name__ = one_by_one.__qualname__ = getattr(hook, "__name__", "hook")
    return one_by_one
