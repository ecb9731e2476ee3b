"""From a torch Store to a world: the store tells the ranks where to meet and with which key, and nothing else."""

import secrets

from ... import _native
from ...meeting import choose_place, this_host


class _Corner:
    """Keys of one meeting. A store may serve several, one after the other: each rank enters each meeting once."""

    def __init__(self, store, size):
        turn = (store.add("farandole/entered", 1) - 1) // size
        self._store = store
        self._prefix = f"farandole/{turn}"

    def set(self, key, value):
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key):
        return self._store.get(f"{self._prefix}/{key}").decode()


def _host_of(store):
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)


def make_world(store, rank, size, timeout_s, knobs):
    """The native world of these ranks. Blocks until all are there."""
    facts = {"rank": rank, "size": size}
    if size > 1:
        corner = _Corner(store, size)
        corner.set(f"host/{rank}", this_host())
        if rank == 0:
            hosts = [corner.get(f"host/{one}") for one in range(size)]
            corner.set("place", f"{secrets.token_hex(16)} {choose_place(hosts, _host_of(store))}")
        facts["job_key"], facts["rendezvous"] = corner.get("place").split(" ", 1)
    return _native.World(facts, {"start_timeout_s": str(timeout_s), **knobs})
