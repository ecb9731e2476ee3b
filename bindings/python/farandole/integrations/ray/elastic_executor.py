"""ElasticRayExecutor: RayExecutor(min_workers=..., max_workers=...), which replaces lost workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

from ...run import rank_error
from ..ranks.failures import explain
from ..ranks.worlds import settings
from . import ray_logger, worker
from .coordinator import Coordinator, CoordinatorClient
from .failures import READER, is_death
from .fixed_executor import FixedRayExecutor, _Worker
from .needed import beside_driver, ray_module
from .ray_logger import Listener

_OTHERS_S = 1.0  # how long start() waits for more workers after the fewest have begun
_FAILURES_S = 3.0  # the time that the other workers have to return when the job cannot continue


class ElasticRayExecutor(FixedRayExecutor):
    """RayExecutor for functions that farandole.elastic.run has wrapped (horovod's: hvd.elastic.run).

    start() requests `max_workers` workers from Ray (None: as many as the cluster has resources for) and returns when
    `min_workers` have begun. A worker that is lost or raises is replaced as soon as Ray has resources. The others
    continue from their last commit if at least `min_workers` are left; else they wait for up to
    `elastic_timeout` seconds. `reset_limit`: how many generations may follow the first (0: no limit).
    """

    def __init__(
        self,
        settings=None,
        num_workers=None,
        num_hosts=None,
        num_workers_per_host=1,
        cpus_per_worker=1,
        use_gpu=False,
        gpus_per_worker=None,
        use_current_placement_group=True,
        min_workers=None,
        max_workers=None,
        reset_limit=None,
        cooldown_range=None,
        elastic_timeout=600,
        override_discovery=True,
    ):
        if num_workers or num_hosts:
            raise ValueError("RayExecutor: min_workers and max_workers take the place of num_workers and num_hosts")
        fewest = 1 if min_workers is None else min_workers
        if fewest < 1 or (max_workers is not None and max_workers < fewest):
            raise ValueError(
                f"RayExecutor: min_workers={min_workers} and max_workers={max_workers} leave no number between them"
            )
        super().__init__(settings, num_workers=fewest, cpus_per_worker=cpus_per_worker, use_gpu=use_gpu,
                         gpus_per_worker=gpus_per_worker)  # fmt: skip
        self._fewest, self._most, self._resets, self._timeout_s = fewest, max_workers, reset_limit or 0, elastic_timeout
        self._worker_actors: dict[int, Any] = {}  # worker: its actor
        self._known: dict[int, worker.Facts] = {}  # of those that have begun
        self._looking: dict = {}  # reference to a worker's facts: the worker
        self._count = self._wanted = 0
        self._prepared = ()

    # ---- Starting and ending ----------------------------------------------------------------------------------------

    def start(self, executable_cls: type | None = None, executable_args: Sequence | None = None,
              executable_kwargs: dict | None = None, extra_env_vars: dict[str, str] | None = None) -> None:  # fmt: skip
        if self._worker_actors:
            raise RuntimeError("RayExecutor: start() was called before; call shutdown() first")
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        made_of = (executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {}))
        self._prepared = (dict(extra_env_vars or {}), [], *made_of)
        self._wanted = max(self._fewest, self._room(ray) if self._most is None else self._most)
        try:
            for _ in range(self._wanted):
                self._hire(ray)
            looking = list(self._looking)
            begun, _ = ray.wait(looking, num_returns=self._fewest, timeout=self.settings.placement_group_timeout_s)
            if len(begun) < self._fewest:
                raise TimeoutError(f"RayExecutor: Ray found room for {len(begun)} of {self._fewest} workers within "
                                   f"{self.settings.placement_group_timeout_s:g} s; free are "
                                   f"{ray.available_resources()} of "
                                   f"{ray.cluster_resources()}")  # fmt: skip
            for one in ray.wait(looking, num_returns=len(looking), timeout=_OTHERS_S)[0]:
                self._welcome(ray, one)
        except BaseException:
            self._end()
            raise

    def _room(self, ray) -> int:
        whole = ray.cluster_resources()
        wanted = {"CPU": self._cpus, "GPU": self._gpus}
        return int(min(whole.get(name, 0) // amount for name, amount in wanted.items() if amount))

    def _hire(self, ray) -> None:
        actor = ray.remote(_ElasticWorker).options(num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0).remote()
        self._worker_actors[self._count] = actor
        self._looking[actor.begin.remote(*self._prepared)] = self._count
        self._count += 1

    def _welcome(self, ray, reference) -> int | None:
        """A worker that has begun. None if it was lost before, in which case another is started."""
        index = self._looking.pop(reference)
        try:
            self._known[index] = ray.get(reference)
            return index
        except Exception as error:
            if not is_death(error):
                raise
            self._dismiss(ray, index)
            self._hire(ray)
            return None

    def _dismiss(self, ray, index: int) -> None:
        ray.kill(self._worker_actors.pop(index), no_restart=True)

    def shutdown(self) -> None:
        if self._worker_actors:
            self._end()

    def _end(self) -> None:
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        for index in list(self._worker_actors):
            self._dismiss(ray, index)
        self._looking, self._known = {}, {}

    # ---- Calling ----------------------------------------------------------------------------------------------------

    def run(self, fn: Callable, args: Sequence | None = None, kwargs: dict | None = None,
            callbacks: Sequence[Callable] | None = None) -> list:  # fmt: skip
        """As FixedRayExecutor.run. The results are those of the ranks of the last generation."""
        return self._job((fn, tuple(args or ()), dict(kwargs or {})), callbacks)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable] | None = None) -> list:
        return self._job((fn, None, {}), callbacks)

    def run_remote(self, *_, **__):
        raise NotImplementedError(
            "RayExecutor: with min_workers or max_workers the driver must replace workers: call run()"
        )

    def execute_single(self, fn):
        raise NotImplementedError(
            "RayExecutor: with min_workers or max_workers there is no rank 0 before init(): call execute()"
        )

    def _job(self, task: tuple, callbacks: Sequence[Callable] | None) -> list:
        if not self._worker_actors:
            raise RuntimeError("RayExecutor: there are no workers; call start() first")
        job = _Job(self, task, Listener(callbacks) if callbacks else None)
        try:
            return job.run()
        except BaseException:
            self._end()
            raise
        finally:
            job.end()


class _Job:
    """One call of a function on workers that are lost and replaced."""

    def __init__(self, executor: ElasticRayExecutor, task: tuple, listener: Listener | None):
        self.executor, self.listener = executor, listener
        self.ray = ray = ray_module("farandole.integrations.ray.RayExecutor")
        self.task = ray.put(task)
        nics = ",".join(executor.settings.nics) if executor.settings.nics else None
        self.more = settings(executor.settings.timeout_s, nics)
        limits = (
            executor._fewest,
            executor._wanted,
            executor._resets,
            executor._timeout_s,
            executor.settings.timeout_s,
        )
        self.coordinator = beside_driver(ray, Coordinator, *limits)
        self.late = self.coordinator.late.remote()
        self.running: dict = {}  # reference: worker
        self.values: dict[int, Any] = {}
        self.failures: dict[int, dict[int, tuple]] = {}  # by generation and rank: its place, and the error
        self.over: str | None = None
        self.deadline: float | None = None

    def run(self) -> list:
        while len(self.executor._worker_actors) < self.executor._wanted:  # the call before ended some
            self.executor._hire(self.ray)
        known = list(self.executor._known)
        self.ray.get([self.coordinator.start.remote(one, self.executor._known[one]) for one in known])
        for one in known:
            self.begin(one)
        while self.running:
            left = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            logged = [self.listener.values] if self.listener else []
            coming = [] if self.over else list(self.executor._looking)
            ready, _ = self.ray.wait([*self.running, *coming, *logged, self.late], num_returns=1, timeout=left)
            if not ready:
                break
            self.take(ready[0])
        if self.listener:
            self.listener.end()
            self.listener = None
        ranks = self.ray.get(self.coordinator.ranks.remote())
        if self.over is None and all(one in self.values for one in ranks):
            return [self.values[one] for one in ranks]
        raise self.failure()

    def begin(self, index: int) -> None:
        buffer = self.listener and self.listener.buffer
        actor = self.executor._worker_actors[index]
        self.running[actor.run_elastic.remote(self.coordinator, index, self.more, buffer, self.task)] = index

    def take(self, one) -> None:
        executor, ray = self.executor, self.ray
        if one == self.late:
            self.late = self.coordinator.late.remote()
            for index in ray.get(one):
                if index in executor._worker_actors:
                    ray.kill(executor._worker_actors[index], no_restart=True)  # its function fails
        elif one in executor._looking:
            index = executor._welcome(ray, one)
            if index is not None:
                ray.get(self.coordinator.start.remote(index, executor._known[index]))
                self.begin(index)
        elif one in self.running:
            self.take_end(one, self.running.pop(one))
        else:
            self.listener.take()

    def take_end(self, reference, index: int) -> None:
        executor, ray, error = self.executor, self.ray, None
        try:
            self.values[index] = ray.get(reference)
        except Exception as failure:
            error = failure
        generation, rank, over = ray.get(self.coordinator.end.remote(index, error is None))
        if over and not self.over:
            self.over, self.deadline = over, time.monotonic() + _FAILURES_S
        if error is None:
            return
        place = executor._known.pop(index).name()
        self.failures.setdefault(generation, {})[index if rank is None else rank] = (place, error)
        executor._dismiss(ray, index)
        # A worker that raised before it had a rank is not replaced: the next one would raise the same.
        if not self.over and not self.values and (rank is not None or is_death(error)):
            executor._hire(ray)

    def failure(self) -> Exception:
        """The exception to raise. Its cause is the first failure of the last generation that had one."""
        if not self.failures:
            return rank_error(-1, f"the elastic job ended: {self.over}")
        last = self.failures[max(self.failures)]
        errors = {rank: error for rank, (_, error) in last.items()}
        cause = explain(errors, lambda rank: last[rank][0] if rank in last else "its node", None, READER)
        return rank_error(cause.rank, f"{cause.text}\nthe elastic job ended: {self.over}", cause.__cause__)

    def end(self) -> None:
        self.ray.kill(self.coordinator)


class _ElasticWorker(_Worker):
    def begin(self, *prepared) -> worker.Facts:
        self.prepare(*prepared)
        return worker.look()

    def run_elastic(self, coordinator, index: int, more: dict[str, str], buffer: Any, task: tuple) -> Any:
        function, args, kwargs = task
        given = (self._executable,) if args is None else args
        with ray_logger.forwarding(buffer):
            return worker.run_elastic(CoordinatorClient(coordinator, index), more, lambda: function(*given, **kwargs))
