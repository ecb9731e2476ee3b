"""Ray Train: its workers as ranks of farandole, through Ray Train's interface for backends."""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import Any, Callable

from ...errors import PeerLostError
from ...run import RankError
from ..ranks.failures import explain
from ..ranks.placement import number
from ..ranks.worlds import Secret, choose_rendezvous, settings
from . import worker
from .failures import READER, place_in
from .needed import ray_module

_USER, _PACKAGE = "farandole.integrations.ray.FarandoleTrainer", "ray[train]>=2.51"
ray = ray_module(_USER, package=_PACKAGE)
train = ray_module(_USER, "ray.train", _PACKAGE)
Backend = ray_module(_USER, "ray.train.backend", _PACKAGE).Backend
# Ray has two classes of this name. This one is the base class of TorchTrainer.
DataParallelTrainer = ray_module(_USER, "ray.train.v2.api.data_parallel_trainer", _PACKAGE).DataParallelTrainer

# How long a rank waits before it raises that another one was lost. farandole reports a loss within milliseconds. Ray
# notices it a moment later, and knows the node and the cause; if this error came first, Ray would end the job without
# them.
_NOTICE_S = 2.0
_LEAVE_S = 5.0  # the time that workers have for an orderly shutdown


@contextlib.contextmanager
def _world():
    """Around the function that a worker runs.

    If the function raises, the world stays: Ray ends the process, and the other ranks then report its loss and not an
    orderly shutdown.
    """
    try:
        yield
    except BaseException as error:
        if hasattr(error, "add_note"):  # Python 3.11: RankFailedError finds the place in the traceback
            error.add_note(f"in {worker.look().name()}")
        if isinstance(error, PeerLostError):
            time.sleep(_NOTICE_S)
        raise
    worker.leave()


class _FarandoleBackend(Backend):
    """The steps of Ray Train before and after the workers run. It has no state: each restart has its own key."""

    share_cuda_visible_devices = True  # so that device `local_rank` is a rank's own

    def on_start(self, worker_group, backend_config: FarandoleConfig) -> None:
        facts = worker_group.execute(worker.look)
        members = number([one.node for one in facts])  # Ray Train has assigned the ranks, node by node
        rendezvous = worker_group.execute_single(0, choose_rendezvous, [one.host for one in facts], facts[0].address)
        key = Secret(secrets.token_hex(32))
        more = backend_config.variables()
        ray.get([worker_group.execute_single_async(one.rank, worker.set_member, one, rendezvous, key, more)
                 for one in members])  # fmt: skip

    def on_shutdown(self, worker_group, backend_config: FarandoleConfig) -> None:
        leaving = worker_group.execute_async(worker.leave)
        ray.wait(leaving, num_returns=len(leaving), timeout=_LEAVE_S)  # dead workers never return


@dataclass
class FarandoleConfig(train.BackendConfig):
    """Makes the workers of a Ray Train trainer one world of farandole.

    It is the `backend_config` of DataParallelTrainer or the `torch_config` of TorchTrainer. The function that the
    workers run calls `farandole.init()` or `farandole.torch.init()`.

    `start_timeout_s`: seconds in which all ranks must arrive in init(). Later, the ranks that have arrived raise
    TimeoutError, which names the missing ones. `interfaces`: the network interfaces to use, as FARANDOLE_INTERFACES.
    None leaves the value of the worker's environment.
    """

    start_timeout_s: float | None = None
    interfaces: str | None = None
    backend = "farandole"  # TorchTrainer reads it

    @property
    def backend_cls(self):
        return _FarandoleBackend

    @property
    def train_func_context(self):
        return _world

    def to_dict(self) -> dict[str, Any]:
        return {"start_timeout_s": self.start_timeout_s, "interfaces": self.interfaces}

    def variables(self) -> dict[str, str]:
        """Further variables of the workers' environments."""
        return settings(self.start_timeout_s, self.interfaces)


class RankFailedError(RankError, train.WorkerGroupError):
    """FarandoleTrainer.fit() raises this: Ray Train's error with the first rank that failed, its node and the cause."""

    def __init__(self, error: train.WorkerGroupError, size: int | None):
        train.WorkerGroupError.__init__(self, str(error), error.worker_failures)
        self._of, self._size = error, size
        cause = explain(error.worker_failures, lambda rank: place_in(error.worker_failures.get(rank)), size, READER)
        self.rank, self.text, self.__cause__ = cause.rank, cause.text, cause.__cause__

    def __reduce__(self):
        return RankFailedError, (self._of, self._size)


class FarandoleTrainer(DataParallelTrainer):
    """Ray Train's DataParallelTrainer with a world of farandole over its workers.

    Each worker calls `train_loop_per_worker`, with `train_loop_config` if it takes an argument. The other options are
    Ray Train's (scaling_config, run_config, datasets...). Each restart is a new world with a new key.
    """

    def __init__(self, train_loop_per_worker: Callable, *, train_loop_config: dict | None = None,
                 farandole_config: FarandoleConfig | None = None, **options: Any):  # fmt: skip
        super().__init__(train_loop_per_worker, train_loop_config=train_loop_config,
                         backend_config=farandole_config or FarandoleConfig(), **options)  # fmt: skip

    def fit(self) -> train.Result:
        """Trains, and returns Ray Train's result.

        RankFailedError, a ray.train.WorkerGroupError, if a worker failed and the run_config's
        FailureConfig(max_failures=...) allows no further restart.
        """
        try:
            return super().fit()
        except train.WorkerGroupError as error:
            if not error.worker_failures:
                raise
            workers = self.scaling_config.num_workers
            failed = RankFailedError(error, workers if isinstance(workers, int) else None)
            raise failed from failed.__cause__
