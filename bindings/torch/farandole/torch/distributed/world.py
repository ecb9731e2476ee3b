"""Worlds that process groups share. The first group that needs the ranks of a world creates it, and ends it."""

import atexit
import os
import threading
import weakref

import torch.distributed as dist

from ... import _native
from .rendezvous import make_world

_EXIT_GRACE_S = 2.0


class World:
    """A native world and the process groups that use it."""

    def __init__(self, store, rank, size, timeout, knobs):
        self._native = make_world(store, rank, size, timeout.total_seconds(), knobs)
        self._pid = os.getpid()
        self._everyone = tuple(range(size))
        self._members = weakref.WeakSet()
        self._first = None
        self._lock = threading.Lock()
        _worlds.add(self)

    def group(self, ranks):
        """The native group of these ranks. All of them create groups of the same ranks in the same order."""
        if ranks == self._everyone:
            return _native.Group.all(self._native)
        with self._lock:
            return _native.Group.create(self._native, list(ranks))

    def add(self, process_group):
        self._members.add(process_group)
        if self._first is None:
            self._first = weakref.ref(process_group)

    def forget(self, process_group):
        self._members.discard(process_group)
        if self._first is not None and self._first() is process_group:
            self.close()
        elif process_group._group is not None:
            process_group._group.close()

    def close(self, grace_s=0.0):
        if self._pid != os.getpid():
            return
        for one in list(self._members):
            one._channel.close(grace_s)
        self._native.close()
        _worlds.discard(self)


_worlds = weakref.WeakSet()


@atexit.register
def _close_all():
    for world in list(_worlds):
        world.close(_EXIT_GRACE_S)


# A forked child has no other threads, and locks may be in any state.
os.register_at_fork(after_in_child=_native.forget_channels)


def world_for(store, rank, size, global_ranks, timeout, knobs):
    """(world, its ranks that form the group): the default group's world if that is farandole's, else a new one."""
    from .process_group import ProcessGroup

    if global_ranks and dist.is_initialized():
        whole = dist.group.WORLD
        if isinstance(whole, ProcessGroup) and not knobs:
            return whole._world, [whole._ranks[one] for one in global_ranks]
    return World(store, rank, size, timeout, knobs), list(range(size))
