"""farandole.tensorflow: the API of programs written for Horovod, for TensorFlow 2."""

from .versions import check as _check

_check()

from .. import basics  # noqa: E402
from ..basics import *  # noqa: E402, F403 (basics.__all__ lists the names that all frameworks share)
from ..errors import HorovodInternalError  # noqa: E402
from . import elastic  # noqa: E402
from . import gradients as _gradients  # noqa: E402, F401 (registers the gradients)
from .aggregation import LocalGradientAggregationHelper  # noqa: E402
from .compression import Compression  # noqa: E402
from .functions import (  # noqa: E402
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .ops import (  # noqa: E402
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_broadcast,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from .optimizer import DistributedOptimizer  # noqa: E402
from .tape import DistributedGradientTape, PartialDistributedGradientTape  # noqa: E402

__all__ = basics.__all__ + [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_broadcast",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


def __getattr__(name):
    # Not in __all__: its base class is Keras', whose import takes a second that programs without Keras save.
    if name == "SyncBatchNormalization":
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
