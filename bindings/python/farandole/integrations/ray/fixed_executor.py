"""FixedRayExecutor: functions on a fixed number of workers of a Ray cluster. Users construct RayExecutor."""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ..ranks.failures import explain
from ..ranks.placement import Member, by_node, number, visible_devices
from ..ranks.worlds import Secret, choose_rendezvous, settings
from . import ray_logger, worker
from .failures import READER, is_death
from .needed import ray_module
from .ray_logger import Listener

_LEAVE_S = 5.0  # the time that workers have for an orderly shutdown
_FAILURES_S = 3.0  # the time that the other workers have to return after one has failed


@dataclass
class Settings:
    """How a RayExecutor starts.

    `timeout_s`: seconds in which all ranks must arrive in init().
    `placement_group_timeout_s`: seconds in which Ray must reserve resources for the workers.
    `nics`: names of the network interfaces to use.
    `ssh_identity_file` and `ssh_str` are ignored: no ssh is used.
    """

    timeout_s: float = 30
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    placement_group_timeout_s: float = 100
    nics: Sequence[str] | None = None


class FixedRayExecutor:
    """A group of Ray actors that are the ranks of one world.

    `num_workers` workers go to as few nodes as possible (placement group PACK). `num_hosts` nodes instead get
    `num_workers_per_host` workers each (STRICT_SPREAD). Each worker gets `cpus_per_worker` cores and, with `use_gpu`,
    `gpus_per_worker` GPUs (default 1). Ranks are consecutive on a node. All ranks of a node see the GPUs of all its
    workers, so that device `local_rank()` is a rank's own. Inside a placement group the workers use that group, unless
    `use_current_placement_group` is False.

    Methods that call functions raise farandole.RankError. It names the rank, its node and the cause, and it is also an
    instance of the cause's class. If a worker died or other workers did not return, all workers are ended; start() can
    follow.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Sequence[str] | None = None,
    ) -> Settings:
        """The Settings with these values, as programs written for Horovod make them."""
        return Settings(timeout_s, ssh_identity_file, ssh_str, placement_group_timeout_s, nics)

    @staticmethod
    def bind(*args: Any, **kwargs: Any) -> dict[str, Any]:
        """The constructor's arguments by name."""
        return inspect.signature(FixedRayExecutor.__init__).bind(None, *args, **kwargs).arguments

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
        self._members: list[Member] = []

    def __enter__(self) -> FixedRayExecutor:
        return self

    def __exit__(self, *_) -> None:
        self.shutdown()

    # ---- Starting and ending ----------------------------------------------------------------------------------------

    def start(self, executable_cls: type | None = None, executable_args: Sequence | None = None,
              executable_kwargs: dict | None = None, extra_env_vars: dict[str, str] | None = None) -> None:  # fmt: skip
        """Starts the workers, sets `extra_env_vars` in them, and constructs an `executable_cls` in each, for execute().

        TimeoutError if Ray has no resources for them within the settings' seconds. RankError if one cannot begin.
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
        """Ends the workers and releases their resources. Does nothing if there are none. start() may follow."""
        if not self._actors and self._group is None:
            return
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        leaving = [actor.leave.remote() for actor in self._actors]
        if leaving and self._members:
            ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)  # dead workers never return
        self._end()

    def _end(self) -> None:
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        self._group, self._actors, self._facts, self._members = None, [], [], []

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
        pending = [actor.look.remote() for actor in self._actors]
        facts = ray.get(pending, timeout=self.settings.placement_group_timeout_s)
        order = by_node([one.node for one in facts], [one.gpus for one in facts])
        self._actors = [self._actors[one] for one in order]
        self._facts = [facts[one] for one in order]
        self._members = number([one.node for one in self._facts])

    # ---- Calling ----------------------------------------------------------------------------------------------------

    def run(self, fn: Callable, args: Sequence | None = None, kwargs: dict | None = None,
            callbacks: Sequence[Callable] | None = None) -> list:  # fmt: skip
        """Calls fn(*args, **kwargs) on all workers and returns their results in rank order.

        Each of `callbacks` is called in this thread with every value that rank 0 passes to ray_logger.log(). If a
        callback raises, all workers are ended. RankError if a rank fails.
        """
        return self._gather(*self._start_run(fn, args, kwargs, callbacks))

    def run_remote(self, fn: Callable, args: Sequence | None = None, kwargs: dict | None = None,
                   callbacks: Sequence[Callable] | None = None) -> list:  # fmt: skip
        """As run(), but returns Ray's references to the results at once. ray.get() on them raises Ray's own errors.

        Callbacks are called in a thread.
        """
        references, listener = self._start_run(fn, args, kwargs, callbacks)
        if listener:
            listener.serve(references)
        return references

    def _start_run(self, fn: Callable, args: Sequence | None, kwargs: dict | None,
                   callbacks: Sequence[Callable] | None) -> tuple[list, Listener | None]:  # fmt: skip
        members = self._member_arguments()
        task = ray_module("farandole.integrations.ray.RayExecutor").put((fn, tuple(args or ()), dict(kwargs or {})))
        return self._start(members, lambda actor, *more: actor.run.remote(*more, task), callbacks)

    def _start(
        self, members: list, call: Callable, callbacks: Sequence[Callable] | None
    ) -> tuple[list, Listener | None]:
        """The references of call(actor, member, buffer) for each rank. Only rank 0 may have a buffer."""
        listener = Listener(callbacks) if callbacks else None
        buffers = [listener and listener.buffer] + [None] * (len(members) - 1)
        return [call(*one) for one in zip(self._actors, members, buffers)], listener

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable] | None = None) -> list:
        """Calls fn(executable) on all workers and returns their results in rank order.

        `executable` is the object that start() constructed there. `callbacks` are those of run().
        """
        members = self._member_arguments()
        return self._gather(
            *self._start(members, lambda actor, member, buffer: actor.execute.remote(member, buffer, fn), callbacks)
        )

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls fn(executable) on rank 0 only and returns its result."""
        members = self._member_arguments()
        return self._gather([self._actors[0].execute.remote(members[0], None, fn)])[0]

    def _member_arguments(self) -> list[tuple]:
        """The arguments of worker.set_member for each rank.

        Each call has its own rendezvous address and key, for the worlds that it begins.
        """
        if not self._actors:
            raise RuntimeError("RayExecutor: there are no workers; call start() first")
        hosts = [one.host for one in self._facts]
        rendezvous = self._gather([self._actors[0].choose_rendezvous.remote(hosts, self._facts[0].address)])[0]
        key = Secret(secrets.token_hex(32))
        nics = ",".join(self.settings.nics) if self.settings.nics else None
        more = settings(self.settings.timeout_s, nics)
        return [(member, rendezvous, key, more) for member in self._members]

    def _gather(self, references: list, listener: Listener | None = None) -> list:
        """The results of all ranks.

        RankError if one fails. The workers then stay only if all of them have returned.
        """
        values, failures, waiting = self._await(references, listener)
        if not failures:
            return [values[rank] for rank in range(len(references))]
        failure = explain(failures, lambda rank: self._facts[rank].name(), self.num_workers, READER)
        if waiting or any(is_death(error) for error in failures.values()):
            self._end()
        raise failure from failure.__cause__

    def _await(self, references: list, listener: Listener | None) -> tuple[dict, dict, list]:
        """Results by rank, failures by rank, and the references of the calls that have not returned."""
        ray = ray_module("farandole.integrations.ray.RayExecutor")
        rank_of = {one: rank for rank, one in enumerate(references)}
        values, failures, deadline = {}, {}, None
        waiting = list(references)
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait(waiting + ([listener.values] if listener else []), num_returns=1, timeout=left)
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
                deadline = deadline or time.monotonic() + _FAILURES_S
        if listener:
            self._call_back(listener.end)
        return values, failures, waiting

    def _call_back(self, work: Callable[[], None]) -> None:
        """Runs callbacks, and ends all workers if one raises."""
        try:
            work()
        except BaseException:
            self._end()
            raise


class _Worker:
    """The actor that is a rank. It runs one call at a time."""

    def __init__(self):
        self._executable = None

    def look(self) -> worker.Facts:
        return worker.look()

    def choose_rendezvous(self, hosts: list[str], address: str) -> str:
        return choose_rendezvous(hosts, address)

    def prepare(
        self, variables: dict[str, str], devices: list[str], kind: type | None, args: tuple, kwargs: dict
    ) -> None:
        import os

        os.environ.update(variables)
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        if kind is not None:
            self._executable = kind(*args, **kwargs)

    def run(self, member: tuple, buffer: Any, task: tuple) -> Any:
        worker.set_member(*member)
        function, args, kwargs = task
        with ray_logger.forwarding(buffer):
            return function(*args, **kwargs)

    def execute(self, member: tuple, buffer: Any, function: Callable) -> Any:
        worker.set_member(*member)
        with ray_logger.forwarding(buffer):
            return function(self._executable)

    def leave(self) -> None:
        worker.leave()
