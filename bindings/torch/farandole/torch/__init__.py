"""farandole.torch: the API of programs written for Horovod, for PyTorch."""

from .. import basics
from ..basics import *  # noqa: F403 (basics.__all__ lists the names that all frameworks share)
from ..errors import HorovodInternalError
from ..torch_backend import register as _register_backend
from . import elastic
from .compression import Compression, compression_hook
from .functions import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from .ops import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from .optimizer import DistributedOptimizer
from .state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .sync_batch_norm import SyncBatchNorm
from .tensors import empty

__all__ = basics.__all__ + [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "compression_hook",
    "elastic",
    "empty",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

_register_backend()  # backend="farandole" of torch.distributed
