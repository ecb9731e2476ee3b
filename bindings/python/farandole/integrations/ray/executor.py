"""RayExecutor: Horovod's way to run functions on the workers of a Ray cluster.

executor = RayExecutor(num_workers=4)
executor.start()
results = executor.run(train)      # in rank order; `train` calls hvd.init()
executor.shutdown()
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from . import ray_logger, worker
from .failures import explain, is_death
from .needed import ray_module
from .placement import Seat, by_node, number, visible_devices
from .ray_logger import Listener

_LEAVE_S = 5.0  # how long workers that are to end may take to say good-bye
_STORY_S = 3.0  # how long the others may take to come back too when one has failed


@dataclass
class Settings:
    """How a RayExecutor starts. `timeout_s`: seconds in which all ranks must arrive in init();
    `placement_group_timeout_s`: seconds in which Ray must find room for the workers; `nics`: names of the network
    interfaces to use. `ssh_identity_file` and `ssh_str` mean nothing: nobody logs in."""

    timeout_s: float = 30
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    placement_group_timeout_s: float = 100
    nics: Sequence[str] | None = None


class RayExecutor:
    """A group of Ray actors that are the ranks of one world.

    `num_workers` workers go to as few nodes as there is room on (placement group PACK); or `num_hosts` nodes get
    `num_workers_per_host` each (STRICT_SPREAD). Each worker gets `cpus_per_worker` cores and, with `use_gpu`,
    `gpus_per_worker` GPUs (1). Ranks are consecutive on a node, and all ranks of a node see all its workers' GPUs, so
    that device `local_rank()` is a rank's own. Inside a placement group that one is used, unless
    `use_current_placement_group` is False. With `min_workers` or `max_workers` the job is elastic: see
    elastic_executor.

    Methods that call functions raise farandole.RankError, which names the rank, its node and the cause, and is an
    instance of the cause's class too. Where a worker died, or the others did not come back, all workers are ended:
    start() begins anew.
    """

    _elastic: type[RayExecutor]  # its subclass of elastic jobs, which elastic_executor sets

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Sequence[str] | None = None,
    ) -> Settings:
        return Settings(timeout_s, ssh_identity_file, ssh_str, placement_group_timeout_s, nics)

    def __new__(cls, *args: Any, **kwargs: Any) -> RayExecutor:
        given = inspect.signature(RayExecutor.__init__).bind(None, *args, **kwargs).arguments
        is_elastic = (given.get("min_workers"), given.get("max_workers")) != (None, None)
        return object.__new__(RayExecutor._elastic if cls is RayExecutor and is_elastic else cls)

    def __init__(self, settings: Settings | None = None, num_workers: int | None = None, num_hosts: int | None = None,
                 num_workers_per_host: int = 1, cpus_per_worker: float = 1, use_gpu: bool = False,
                 gpus_per_worker: float | None = None, use_current_placement_group: bool = True,
                 min_workers: int | None = None, max_workers: int | None = None, reset_limit: int | None = None,
                 cooldown_range: Sequence[int] | None = None, elastic_timeout: float = 600,
                 override_discovery: bool = True):  # fmt: skip
        if bool(num_workers) == bool(num_hosts):
            raise ValueError(f"RayExecutor: give one of num_workers and num_hosts, not {num_workers} and {num_hosts}")
        if gpus_per_worker and not use_gpu:
            raise ValueError(f"RayExecutor: gpus_per_worker={gpus_per_worker} needs use_gpu=True")
        self.settings = settings or Settings()
        self.num_workers = num_workers or num_hosts * num_workers_per_host
        self._per_host = None if num_workers else num_workers_per_host
        self._cpus = cpus_per_worker
        self._gpus = (gpus_per_worker or 1) if use_gpu else 0
        self._use_current = use_current_placement_group
        self._group = None  # the placement group that start() made
        self._actors: list = []  # in rank order
        self._facts: list[worker.Facts] = []
        self._seats: list[Seat] = []

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_) -> None:
        self.shutdown()

    # ---- Starting and ending ----------------------------------------------------------------------------------------

    def start(self, executable_cls: type | None = None, executable_args: Sequence | None = None,
              executable_kwargs: dict | None = None, extra_env_vars: dict[str, str] | None = None) -> None:  # fmt: skip
        """Starts the workers, sets `extra_env_vars` in them, and makes an `executable_cls` in each, for execute().

        TimeoutError where Ray has no room for them within the settings' seconds; RankError where one cannot begin.
        """
        if self._actors:
            raise RuntimeError("RayExecutor: start() was called before; call shutdown() first")
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        try:
            self._actors = self._place(ray)
            self._number(ray)
            devices = visible_devices([one.node for one in self._facts], [one.gpus for one in self._facts])
            self._gather([actor.prepare.remote(dict(extra_env_vars or {}), devices[rank], executable_cls,
                                               tuple(executable_args or ()), dict(executable_kwargs or {}))
                          for rank, actor in enumerate(self._actors)])  # fmt: skip
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self) -> None:
        """Ends the workers and gives back their room. Does nothing where there are none. start() may follow."""
        if not self._actors and self._group is None:
            return
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        leaving = [actor.leave.remote() for actor in self._actors]
        if leaving and self._seats:
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)  # who has died does not come
        self._end()

    def _end(self) -> None:
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        self._group, self._actors, self._facts, self._seats = None, [], [], []

    def _place(self, ray) -> list:
        """The actors, in the order of the placement group's bundles."""
        from ray.util.placement_group import get_current_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = get_current_placement_group() if self._use_current else None
        per_bundle = None
        if group is None:
            per_bundle = self._per_host or 1
            bundle = {"CPU": self._cpus * per_bundle, "GPU": self._gpus * per_bundle}
            bundle = {name: amount for name, amount in bundle.items() if amount}
            bundles = [bundle] * (self.num_workers // per_bundle)
            group = self._group = ray.util.placement_group(bundles, "STRICT_SPREAD" if self._per_host else "PACK")
            if not group.wait(self.settings.placement_group_timeout_s):
                raise TimeoutError(f"RayExecutor: Ray found no room for {len(bundles)} x {bundle} within "
                                   f"{self.settings.placement_group_timeout_s:g} s; free are "
                                   f"{ray.available_resources()} "
                                   f"of {ray.cluster_resources()}")  # fmt: skip
        kind = ray.remote(_Worker)
        return [kind.options(num_cpus=self._cpus, num_gpus=self._gpus, max_restarts=0,
                             scheduling_strategy=PlacementGroupSchedulingStrategy(
                                 group, -1 if per_bundle is None else number // per_bundle,
                                 placement_group_capture_child_tasks=False)).remote()
                for number in range(self.num_workers)]  # fmt: skip

    def _number(self, ray) -> None:
        """Puts the actors into rank order."""
        asked = [actor.look.remote() for actor in self._actors]
        facts = ray.get(asked, timeout=self.settings.placement_group_timeout_s)
        order = by_node([one.node for one in facts], [one.gpus for one in facts])
        self._actors = [self._actors[one] for one in order]
        self._facts = [facts[one] for one in order]
        self._seats = number([one.node for one in self._facts])

    # ---- Calling ----------------------------------------------------------------------------------------------------

    def run(self, fn: Callable, args: Sequence | None = None, kwargs: dict | None = None,
            callbacks: Sequence[Callable] | None = None) -> list:  # fmt: skip
        """Calls fn(*args, **kwargs) on all workers; what each returned, in rank order. Each of `callbacks` is called
        here, meanwhile, with every value that rank 0 gives to ray_logger.log(); where one raises, all workers are
        ended."""
        return self._gather(*self._start_run(fn, args, kwargs, callbacks))

    def run_remote(self, fn: Callable, args: Sequence | None = None, kwargs: dict | None = None,
                   callbacks: Sequence[Callable] | None = None) -> list:  # fmt: skip
        """As run(), without waiting: Ray's references to what each will return, for ray.get(), which raises Ray's own
        errors. Callbacks are called in a thread."""
        references, listener = self._start_run(fn, args, kwargs, callbacks)
        if listener:
            listener.serve(references)
        return references

    def _start_run(self, fn: Callable, args: Sequence | None, kwargs: dict | None,
                   callbacks: Sequence[Callable] | None) -> tuple[list, Listener | None]:  # fmt: skip
        seats = self._seated()
        task = ray_module("farandole.integrations.ray.RayExecutor").put((fn, tuple(args or ()), dict(kwargs or {})))
        return self._start(seats, lambda actor, *more: actor.run.remote(*more, task), callbacks)

    def _start(self, seats: list, call: Callable, callbacks: Sequence[Callable] | None) -> tuple[list, Listener | None]:
        """The references of call(actor, seat, board) for each rank; rank 0 alone has a board, if anybody listens."""
        listener = Listener(callbacks) if callbacks else None
        boards = [listener and listener.board] + [None] * (len(seats) - 1)
        return [call(*one) for one in zip(self._actors, seats, boards)], listener

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable] | None = None) -> list:
        """Calls fn(executable) on all workers, `executable` being what start() made there; what each returned.
        `callbacks` as those of run()."""
        seats = self._seated()
        return self._gather(
            *self._start(seats, lambda actor, seat, board: actor.execute.remote(seat, board, fn), callbacks)
        )

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls fn(executable) on rank 0 alone; what it returned."""
        seats = self._seated()
        return self._gather([self._actors[0].execute.remote(seats[0], None, fn)])[0]

    def _seated(self) -> list[tuple]:
        """For each rank what worker.sit takes.

        Each call has a place and a key of its own, for worlds that it begins.
        """
        if not self._actors:
            raise RuntimeError("RayExecutor: there are no workers; call start() first")
        hosts = [one.host for one in self._facts]
        place = self._gather([self._actors[0].choose_place.remote(hosts, self._facts[0].address)])[0]
        key = worker.Secret(secrets.token_hex(32))
        nics = ",".join(self.settings.nics) if self.settings.nics else None
        more = worker.settings(self.settings.timeout_s, nics)
        return [(seat, place, key, more) for seat in self._seats]

    def _gather(self, references: list, listener: Listener | None = None) -> list:
        """What the ranks return.

        RankError where one fails; then the workers stay only if all of them have come back.
        """
        values, failures, waiting = self._await(references, listener)
        if not failures:
            return [values[rank] for rank in range(len(references))]
        told = explain(failures, lambda rank: self._facts[rank].name(), self.num_workers)
        if waiting or any(is_death(error) for error in failures.values()):
            self._end()
        raise told from told.__cause__

    def _await(self, references: list, listener: Listener | None) -> tuple[dict, dict, list]:
        """By rank what returned and what failed, and the references of those that have not come back."""
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        rank_of = {one: rank for rank, one in enumerate(references)}
        values, failures, deadline = {}, {}, None
        waiting = list(references)
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(waiting + ([listener.heard] if listener else []), num_returns=1, timeout=left)
            if not ready:
                break
            if ready[0] not in rank_of:
                self._call_back(listener.take)
                continue
            waiting.remove(ready[0])
            try:
                values[rank_of[ready[0]]] = ray.get(ready[0])
            except Exception as error:
                failures[rank_of[ready[0]]] = error
                deadline = deadline or time.monotonic() + _STORY_S
        if listener:
            self._call_back(listener.end)
        return values, failures, waiting

    def _call_back(self, work: Callable[[], None]) -> None:
        """A callback that raises ends the run."""
        try:
            work()
        except BaseException:
            self._end()
            raise


class _Worker:
    """The actor that is a rank. One call runs at a time."""

    def __init__(self):
        self._executable = None

    def look(self) -> worker.Facts:
        return worker.look()

    def choose_place(self, hosts: list[str], address: str) -> str:
        return worker.choose_place(hosts, address)

    def prepare(
        self, variables: dict[str, str], devices: list[str], kind: type | None, args: tuple, kwargs: dict
    ) -> None:
        import os

        os.environ.update(variables)
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if kind is not None:
            self._executable = kind(*args, **kwargs)

    def run(self, seat: tuple, board: Any, task: tuple) -> Any:
        worker.sit(*seat)
        function, args, kwargs = task
        with ray_logger.telling(board):
            return function(*args, **kwargs)

    def execute(self, seat: tuple, board: Any, function: Callable) -> Any:
        worker.sit(*seat)
        with ray_logger.telling(board):
            return function(self._executable)

    def leave(self) -> None:
        worker.leave()
