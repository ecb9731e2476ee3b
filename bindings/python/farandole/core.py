"""Worlds, groups, named operations and ordered communicators for any object that holds plain memory.

Results are NumPy arrays unless `out` is given; NumPy is imported when the first one is created. Tensors support the
buffer protocol or `__dlpack__`, or are given as (pointer, dtype, shape). Arrays on a CUDA device (by
`__cuda_array_interface__` or `__dlpack__`) stay there, and their results are arrays of their own library.
"""

from . import _native, errors
from .codes import Kind, Op
from .communicator import Communicator, Request
from .memory import allocate, allocate_on_device, can_use_device, empty, open_device
from .operation import Operation
from .operations import (
    Handle,
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    join_async,
    reducescatter,
    reducescatter_async,
)
from .world import (
    Group,
    ProcessSet,
    cross_rank,
    cross_size,
    info,
    init,
    is_initialized,
    last_rank,
    local_rank,
    local_size,
    metrics,
    note_loss,
    on_shrink,
    on_shutdown,
    rank,
    shrink,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
    world_group,
)

__all__ = [
    "Communicator",
    "Group",
    "Handle",
    "Kind",
    "Op",
    "Operation",
    "ProcessSet",
    "Request",
    "allgather",
    "allgather_async",
    "allocate",
    "allocate_on_device",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "can_use_device",
    "config",
    "cross_rank",
    "cross_size",
    "empty",
    "explain",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "info",
    "init",
    "is_initialized",
    "join",
    "join_async",
    "last_rank",
    "local_rank",
    "local_size",
    "metrics",
    "note_loss",
    "on_shrink",
    "on_shutdown",
    "open_device",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "shrink",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "world_group",
]


def config():
    """The settings with their values and the source of each value, as text."""
    return _native.config()


def setting(name):
    """The value of a setting as text, such as "10" for lost_after_s."""
    for line in config().splitlines():
        words = line.split()
        if words[0] == name:
            return words[1]
    raise KeyError(name)


def explain(collective, ranks, bytes, algorithm="auto"):
    """Explains, as text, how `ranks` ranks would run a collective of `bytes` bytes over TCP.

    The text names the algorithm, the reason for the choice, and the steps. `collective` is a name such as "allreduce";
    `algorithm` is a name or "auto".
    """
    return _native.explain(
        errors.checked_text(collective, "collective"),
        errors.checked_number(ranks, "ranks"),
        errors.checked_number(bytes, "bytes", errors.SIZE),
        errors.checked_text(algorithm, "algorithm"),
    )
