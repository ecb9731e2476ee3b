"""DaskCluster: tasks on the workers of a Dask cluster as the agents of a farandole job."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Callable
from urllib.parse import urlsplit

from ..needed import import_needed
from ..ranks.agent import run_agent
from ..ranks.job import Cluster
from ..ranks.worlds import Secret

_USER, _PACKAGE = "farandole.dask", "dask[distributed]"


def run_task(number: int, addresses: list[tuple[str, int]], key: Secret, task: bytes,
             python: str | None) -> list[tuple[int, bytes]]:  # fmt: skip
    """Runs in a worker: the results of an agent."""
    from distributed import get_worker

    own = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[:1]  # dask-cuda puts the worker's own device first
    place = {"order": number, "worker": get_worker().address, "gpus": [one for one in own if one]}
    return run_agent(addresses, key, place, task, python)


def client_of(client=None):
    """The given client, or the active one. RuntimeError if there is none, TypeError if it is asynchronous."""
    distributed = import_needed(_USER, "distributed", "Dask", _PACKAGE)
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError:
            raise RuntimeError(
                "farandole.dask: there is no active client: create one, distributed.Client(...)"
            ) from None
    if client.asynchronous:
        raise TypeError(
            "farandole.dask: the client is asynchronous: give one that was created without asynchronous=True"
        )
    return client


class DaskCluster(Cluster):
    """Starts one agent on each of `workers`, or agents that Dask may start again elsewhere (`elastic`)."""

    name = "Dask"
    stop_s = 2.0  # a task of a lost worker would wait for that worker for ever

    def __init__(self, client, workers: Sequence[str], elastic: bool, task: bytes, python: str | None = None):
        self._client, self._workers, self._elastic = client, list(workers), elastic
        self._task, self._python = task, python
        self._futures: list = []

    def address(self) -> str:
        host = urlsplit(self._client.scheduler.address).hostname or ""
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends nothing: the kernel chooses the source address
                return probe.getsockname()[0]
        except OSError:  # a cluster within this process has no address
            return "127.0.0.1"

    def start(self, count: int, addresses: list[tuple[str, int]], key: Secret, done: Callable[[list, Any], None]):
        name = f"farandole-{secrets.token_hex(8)}"
        self._futures = [
            self._client.submit(run_task, number, addresses, key, self._task, self._python, key=f"{name}-{number}",
                                workers=[worker], allow_other_workers=self._elastic, pure=False, retries=0)
            for number, worker in enumerate(self._workers)]  # fmt: skip

        def work():
            results, error = [], None
            for future in self._futures:
                try:
                    results += future.result()
                except BaseException as failure:
                    error = error or failure
            for future in self._futures:
                future.release()  # Dask would run the task again if the worker with its result were lost later
            done(results, error)

        threading.Thread(target=work, name="farandole.dask", daemon=True).start()

    def cancel(self) -> None:
        self._client.cancel(self._futures, force=True)

    def place(self, facts: Mapping) -> str:
        return f"{facts['host_name']} ({facts['address']}, Dask worker {facts['worker']}, process {facts['process']})"
