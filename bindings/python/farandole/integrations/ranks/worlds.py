"""Worlds: the job's key, the rendezvous address, and the variables that tell a process its place in a world."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ... import rendezvous
from .placement import Member

NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "RENDEZVOUS", "JOB_KEY")


class Secret:
    """The key of a job, on its way from the driver to the workers. No repr, log or traceback shows it."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return "<the job's key>"

    def __reduce__(self):
        return Secret, (self.text,)


def choose_rendezvous(hosts: Sequence[str], address: str) -> str:
    """The rendezvous address of a world. Rank 0's worker calls it.

    `hosts`: rendezvous.host_identity() of all ranks. `address`: at which other hosts reach this one.
    FARANDOLE_PORT_BASE and FARANDOLE_PORT_COUNT of that worker limit it to the open ports.
    """
    return rendezvous.choose_rendezvous(hosts, own=address, ports=open_ports())


def open_ports() -> tuple[int, int] | None:
    """The first and the last open port of this host; None if all are open."""
    base, count = os.environ.get("FARANDOLE_PORT_BASE", ""), os.environ.get("FARANDOLE_PORT_COUNT", "64")
    return (int(base), int(base) + int(count) - 1) if base.isdigit() and base != "0" and count.isdigit() else None


def both_rendezvous(address: str) -> tuple[str, str]:
    """The addresses to use if the calling worker becomes rank 0: for ranks of its host only, and for several hosts."""
    here = rendezvous.host_identity()
    return choose_rendezvous([here], address), choose_rendezvous([here, "another"], address)


def variables(member: Member, address: str, key: Secret) -> dict[str, str]:
    """The variables from which init() takes its rank, the rendezvous address and the job's key."""
    values = (member.rank, member.size, member.local_rank, member.local_size, address, key.text)
    return {f"FARANDOLE_{name}": str(value) for name, value in zip(NAMES, values)}


def horovod_variables(member: Member, host_name: str) -> dict[str, str]:
    """The variables of horovodrun that programs read themselves."""
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    numbers = {f"HOROVOD_{name.upper()}": str(getattr(member, name)) for name in names}
    return {**numbers, "HOROVOD_HOSTNAME": host_name, "HOROVOD_CONTROLLER": "gloo"}


def settings(start_timeout_s: float | None, interfaces: str | None) -> dict[str, str]:
    """Further variables of a worker. None leaves the worker's own value."""
    named = {"FARANDOLE_START_TIMEOUT_S": start_timeout_s, "FARANDOLE_INTERFACES": interfaces}
    return {name: str(value) for name, value in named.items() if value is not None}
