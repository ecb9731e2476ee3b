"""FixedJob: waits for all agents, makes their ranks one world, and ends at the first failure."""

from __future__ import annotations

import time
from typing import Any

from .failures import explain
from .job import Cluster, Job, Options, Worker
from .placement import by_node, number, visible_devices
from .worlds import horovod_variables, variables


class FixedJob(Job):
    """A job of `size` ranks. Its world begins when all agents have come."""

    def __init__(self, size: int, cluster: Cluster, options: Options):
        super().__init__(cluster, options)
        self._size, self._due = size, None

    def agents(self) -> int:
        return self._size

    def run(self) -> list:
        self._due = time.monotonic() + self.options.start_timeout_s
        return super().run()

    def on_hello(self, worker: Worker) -> None:
        if len(self.workers) == self._size:
            self._due = None
            self._begin()

    def _begin(self) -> None:
        workers = list(self.workers.values())
        workers.sort(key=lambda one: one.facts.get("order", 0))
        gpus = [one.facts.get("gpus", ()) for one in workers]
        order = by_node([one.facts["host"] for one in workers], gpus)
        workers = [workers[one] for one in order]
        hosts = [one.facts["host"] for one in workers]
        rendezvous = workers[0].facts["choices"][len(set(hosts)) > 1]
        seen = visible_devices(hosts, [gpus[one] for one in order])
        for worker, member, devices in zip(workers, number(hosts), seen):
            worker.rank = member.rank
            more = {**variables(member, rendezvous, self.key),
                    **horovod_variables(member, worker.facts["host_name"])}  # fmt: skip
            del more["FARANDOLE_JOB_KEY"]  # the agent has it
            if devices:
                more["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            self.begin(worker, more, elastic=False)

    def on_end(self, worker: Worker, error: BaseException | None) -> None:
        if error is not None:
            self.end("a rank failed")
        if all(one.ended for one in self.workers.values()):
            self.stop_agents()

    def due(self) -> float | None:
        return self._due

    def on_due(self) -> None:
        self._due = None
        came = sorted(self.cluster.place(one.facts) for one in self.workers.values())
        self.give_up(f"{self.cluster.name} started {len(came)} of {self._size} workers within "
                     f"{self.options.start_timeout_s:g} s"
                     + (f": {', '.join(came)}" if came else "")
                     + "; free slots for the others, ask for fewer ranks, or give a longer start_timeout")  # fmt: skip

    def results(self, values: dict[int, Any]) -> list:
        if self.failures:
            failure = explain(self.failures, lambda rank: self._place_of(rank), self._size)
            raise failure from failure.__cause__
        if self.over is not None:
            raise TimeoutError(self.over)
        return [values[one.index] for one in sorted(self.workers.values(), key=lambda one: one.rank)]

    def _place_of(self, rank: int) -> str:
        found = [one for one in self.workers.values() if one.rank == rank]
        return self.cluster.place(found[0].facts) if found else "its host"
