"""Worker: functions that run inside Ray's workers. Ray sends them there by name."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Callable

from ... import core, elastic_client, rendezvous
from ..ranks.placement import Member
from ..ranks.worlds import NAMES, Secret, variables


@dataclass(frozen=True)
class Facts:
    """Where a worker runs. Errors name it, and ranks and the rendezvous address depend on it."""

    node: str  # Ray's id of the node
    host_name: str
    address: str  # at which Ray reaches the node
    process: int
    host: str  # rendezvous.host_identity()
    gpus: tuple[str, ...]  # that Ray assigned to this worker

    def name(self) -> str:
        """The text that names this worker in errors."""
        return place(self.host_name, self.address, self.node, self.process)


def place(host_name: str, address: str, node: str, process: int | str) -> str:
    """The text that names a worker's location in errors."""
    return f"{host_name} ({address}, Ray's node {node[:8]}, process {process})"


def look() -> Facts:
    """The facts of the worker that calls it."""
    import ray

    context = ray.get_runtime_context()
    gpus = context.get_accelerator_ids().get("GPU", [])
    return Facts(context.get_node_id(), socket.gethostname(), ray.util.get_node_ip_address(), os.getpid(),
                 rendezvous.host_identity(), tuple(map(str, gpus)))  # fmt: skip


def set_member(member: Member, address: str, key: Secret, more: dict[str, str] | None = None) -> None:
    """Sets the environment that init() of this process reads: its rank, the rendezvous address and the job's key.

    A world that is initialized already stays. `more`: other variables to set.
    """
    os.environ.update(more or {})
    if core.is_initialized():
        return
    os.environ.update(variables(member, address, key))
    os.environ.pop("FARANDOLE_JOB_KEY_FILE", None)  # of a pod's Secret: this call has its own key


def leave() -> None:
    """Shuts the world down in order and removes the key from the environment."""
    core.shutdown()
    for name in NAMES:
        os.environ.pop(f"FARANDOLE_{name}", None)


def run_elastic(client, more: dict[str, str], work: Callable[[], Any]) -> Any:
    """Calls `work` in a worker that gets each of its worlds from `client`, and returns its result.

    If `work` raises, the world stays: the driver kills this process, and the other ranks then report its loss and not
    an orderly shutdown.
    """
    os.environ.update(more)
    elastic_client.use(client)
    value = work()
    leave()
    elastic_client.use(None)
    return value
