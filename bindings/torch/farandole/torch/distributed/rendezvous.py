"""From a torch Store to a world: the store tells the ranks where to meet and with which key, and nothing else."""

import os
import secrets
import socket

from ... import _native

_PORTS = 16  # rank 0 takes the first free one from here on


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


def _this_host():
    """The same on all processes that can meet in a socket of this machine's memory, and on no others."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def _addresses(store_host):
    """Under which names other hosts may reach this one, the likeliest first."""
    names = []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((store_host or "192.0.2.1", 9))  # sends nothing: asks which of our addresses leads there
            names.append(probe.getsockname()[0])
    except OSError:
        pass
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        names += [address[0] for *_, address in found]
    except OSError:
        pass
    outside = [name for name in dict.fromkeys(names) if not name.startswith("127.")]
    return outside or [socket.gethostname()]


def choose_place(hosts, store_host=None):
    """Where rank 0 waits for the others, given the hosts of all ranks."""
    if len(set(hosts)) == 1:
        return f"unix:@farandole-{secrets.token_hex(16)}"
    port = min(_free_port(), 65535 - _PORTS)
    return "tcp://" + ",".join(f"{name}:{port}-{port + _PORTS - 1}" for name in _addresses(store_host))


def _host_of(store):
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None)


def make_world(store, rank, size, timeout_s, knobs):
    """The native world of these ranks. Blocks until all are there."""
    facts = {"rank": rank, "size": size}
    if size > 1:
        corner = _Corner(store, size)
        corner.set(f"host/{rank}", _this_host())
        if rank == 0:
            hosts = [corner.get(f"host/{one}") for one in range(size)]
            corner.set("place", f"{secrets.token_hex(16)} {choose_place(hosts, _host_of(store))}")
        facts["job_key"], facts["rendezvous"] = corner.get("place").split(" ", 1)
    return _native.World(facts, {"start_timeout_s": str(timeout_s), **knobs})
