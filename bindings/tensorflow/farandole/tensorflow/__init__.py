"""farandole.tensorflow: the API of programs written for Horovod, for TensorFlow 2."""

from .. import basics
from ..basics import *  # noqa: F403 (basics.__all__ lists the names that all frameworks share)
from ..errors import HorovodInternalError
from . import gradients as _gradients  # noqa: F401 (registers the gradients)
from .compression import Compression
from .ops import (
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

__all__ = basics.__all__ + [
    "Compression",
    "HorovodInternalError",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
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
