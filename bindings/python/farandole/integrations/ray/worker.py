"""Worker: what runs inside Ray's workers, as functions that Ray sends there by name."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ... import core, elastic_door, meeting
from .placement import Seat

_NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "RENDEZVOUS", "JOB_KEY")


class Secret:
    """The key of a job, on its way from the driver to the workers. No repr, log or traceback shows it."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return "<the job's key>"

    def __reduce__(self):
        return Secret, (self.text,)


@dataclass(frozen=True)
class Facts:
    """Who a worker is: what errors name, and what its rank and meeting place are found by."""

    node: str  # Ray's id of the node
    host_name: str
    address: str  # at which Ray reaches the node
    process: int
    host: str  # meeting.this_host()
    gpus: tuple[str, ...]  # that Ray gave to this worker

    def name(self) -> str:
        return place(self.host_name, self.address, self.node, self.process)


def place(host_name: str, address: str, node: str, process: int | str) -> str:
    """How errors name the place of a worker."""
    return f"{host_name} ({address}, Ray's node {node[:8]}, process {process})"


def look() -> Facts:
    """The facts of the worker in which it is called."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    return Facts(context.get_node_id(), socket.gethostname(), ray.util.get_node_ip_address(), os.getpid(),
                 meeting.this_host(), tuple(map(str, gpus)))  # fmt: skip


def choose_place(hosts: Sequence[str], address: str) -> str:
    """Where ranks are to meet; called in rank 0's worker. FARANDOLE_PORT_BASE there keeps it to the open ports."""
    base, count = os.environ.get("FARANDOLE_PORT_BASE", ""), os.environ.get("FARANDOLE_PORT_COUNT", "64")
    ports = (int(base), int(base) + int(count) - 1) if base.isdigit() and base != "0" and count.isdigit() else None
    return meeting.choose_place(hosts, own=address, ports=ports)


def sit(seat: Seat, place: str, key: Secret, more: dict[str, str] | None = None) -> None:
    """Tells init() of this process who it is. It reads the environment when it is called, so this comes in time; a
    world that is there already goes on. `more`: other variables to set."""
    os.environ.update(more or {})
    if core.is_initialized():
        return
    values = (seat.rank, seat.size, seat.local_rank, seat.local_size, place, key.text)
    os.environ.update({f"FARANDOLE_{name}": str(value) for name, value in zip(_NAMES, values)})
    os.environ.pop("FARANDOLE_JOB_KEY_FILE", None)  # of a pod's Secret: this run has a key of its own


def settings(start_timeout_s: float | None, interfaces: str | None) -> dict[str, str]:
    """Variables for `sit`; what is None stays as it is in the worker."""
    named = {"FARANDOLE_START_TIMEOUT_S": start_timeout_s, "FARANDOLE_INTERFACES": interfaces}
    return {name: str(value) for name, value in named.items() if value is not None}


def leave() -> None:
    """Says good-bye to the others, and forgets the key."""
    core.shutdown()
    for name in _NAMES:
        os.environ.pop(f"FARANDOLE_{name}", None)


def run_elastic(door, more: dict[str, str], work: Callable[[], Any]) -> Any:
    """What `work` returns, in a worker that asks `door` for each of its worlds. Where it raises, the world stays: the
    driver ends this process, and the others then name it and not its good-bye."""
    os.environ.update(more)
    elastic_door.give(door)
    value = work()
    leave()
    elastic_door.give(None)
    return value
