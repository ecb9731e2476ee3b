"""Creates a world through a torch Store, which carries only the rendezvous address and the job's key."""

import secrets

from ... import _native
from ...rendezvous import choose_rendezvous, host_identity


class _RendezvousKeys:
    """The store's keys of one rendezvous. A store may serve several in sequence; each rank enters each of them once."""

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
    """Creates the native world of these ranks. Blocks until all of them have arrived."""
    facts = {"rank": rank, "size": size}
    if size > 1:
        keys = _RendezvousKeys(store, size)
        keys.set(f"host/{rank}", host_identity())
        if rank == 0:
            hosts = [keys.get(f"host/{one}") for one in range(size)]
            keys.set("rendezvous", f"{secrets.token_hex(16)} {choose_rendezvous(hosts, _host_of(store))}")
        facts["job_key"], facts["rendezvous"] = keys.get("rendezvous").split(" ", 1)
    return _native.World(facts, {"start_timeout_s": str(timeout_s), **knobs})
