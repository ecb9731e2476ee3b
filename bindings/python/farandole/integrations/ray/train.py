"""Ray Train: its workers as ranks of farandole, by the interface that Ray Train has for backends."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import Any, Callable

from ...run import RankError
from . import worker
from .failures import explain, place_in
from .needed import ray_module
from .placement import number

_USER, _PACKAGE = "farandole.integrations.ray.FarandoleTrainer", "ray[train]>=2.51"
ray = ray_module(_USER, package=_PACKAGE)
train = ray_module(_USER, "ray.train", _PACKAGE)
Backend = ray_module(_USER, "ray.train.backend", _PACKAGE).Backend
# Of the two classes of this name in Ray it is the one that TorchTrainer is made of.
DataParallelTrainer = ray_module(_USER, "ray.train.v2.api.data_parallel_trainer", _PACKAGE).DataParallelTrainer

_LEAVE_S = 5.0  # how long workers that are to end may take to say good-bye


@contextlib.contextmanager
def _world():
    """Around the function that a worker runs. One that raises keeps its world: Ray ends its process, and the others
    then name it and not its good-bye."""
    try:
        yield
    except BaseException as error:
        if hasattr(
            error, "add_note"
        ):  # Python 3.11; the place is then in the traceback, where RankFailedError finds it
            error.add_note(f"in {worker.look().name()}")
        raise
    worker.leave()


class _FarandoleBackend(Backend):
    """What Ray Train does before and after the workers run.

    It keeps nothing between them: a restart has its own key.
    """

    share_cuda_visible_devices = True  # as ranks of one host need: device `local_rank` is a rank's own

    def on_start(self, worker_group, backend_config: FarandoleConfig) -> None:
        facts = worker_group.execute(worker.look)
        seats = number([one.node for one in facts])  # Ray Train has given the ranks, node by node
        place = worker_group.execute_single(0, worker.choose_place, [one.host for one in facts], facts[0].address)
        key = worker.Secret(secrets.token_hex(32))
        ray.get([worker_group.execute_single_async(seat.rank, worker.sit, seat, place, key, backend_config.variables())
                 for seat in seats])  # fmt: skip

    def on_shutdown(self, worker_group, backend_config: FarandoleConfig) -> None:
        leaving = worker_group.execute_async(worker.leave)
        ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)  # who has died does not come, and need not


@dataclass
class FarandoleConfig(train.BackendConfig):
    """Makes the workers of a trainer of Ray Train one world of farandole: `backend_config` of DataParallelTrainer,
    `torch_config` of TorchTrainer. The function that they run calls `farandole.init()`, or that of `farandole.torch`.

    `start_timeout_s`: seconds in which all ranks must arrive in init(), else those that came raise TimeoutError and
    name the missing. `interfaces`: which network interfaces' addresses are offered, as FARANDOLE_INTERFACES; None: as
    in the worker's environment.
    """

    start_timeout_s: float | None = None
    interfaces: str | None = None
    backend = "farandole"  # TorchTrainer asks for it

    @property
    def backend_cls(self):
        return _FarandoleBackend

    @property
    def train_func_context(self):
        return _world

    def to_dict(self) -> dict[str, Any]:
        return {"start_timeout_s": self.start_timeout_s, "interfaces": self.interfaces}

    def variables(self) -> dict[str, str]:
        """What the workers' environments get beside their seats."""
        return worker.settings(self.start_timeout_s, self.interfaces)


class RankFailedError(RankError, train.WorkerGroupError):
    """FarandoleTrainer.fit() raises this: Ray Train's error with the first rank that failed, its node and the cause."""

    def __init__(self, error: train.WorkerGroupError, size: int | None):
        train.WorkerGroupError.__init__(self, str(error), error.worker_failures)
        self._of, self._size = error, size
        told = explain(error.worker_failures, lambda rank: place_in(error.worker_failures.get(rank)), size)
        self.rank, self.text, self.__cause__ = told.rank, told.text, told.__cause__

    def __reduce__(self):
        return RankFailedError, (self._of, self._size)


class FarandoleTrainer(DataParallelTrainer):
    """Ray Train's DataParallelTrainer with a world of farandole over its workers.

    `train_loop_per_worker` is called in each, with `train_loop_config` where it takes an argument; the other options
    are Ray Train's (scaling_config, run_config, datasets...). RankFailedError, a ray.train.WorkerGroupError, where a
    worker failed and FailureConfig(max_failures=...) of the run_config is used up; each restart is a world with a new
    key.
    """

    def __init__(self, train_loop_per_worker: Callable, *, train_loop_config: dict | None = None,
                 farandole_config: FarandoleConfig | None = None, **options: Any):  # fmt: skip
        super().__init__(train_loop_per_worker, train_loop_config=train_loop_config,
                         backend_config=farandole_config or FarandoleConfig(), **options)  # fmt: skip

    def fit(self) -> train.Result:
        try:
            return super().fit()
        except train.WorkerGroupError as error:
            if not error.worker_failures:
                raise
            workers = self.scaling_config.num_workers
            failed = RankFailedError(error, workers if isinstance(workers, int) else None)
            raise failed from failed.__cause__
