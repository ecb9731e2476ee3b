"""farandole: collective communication. `import farandole` needs no framework; farandole.torch needs PyTorch."""

import os as _os

from . import elastic, errors
from ._native import version as _version
from .core import (
    Communicator,
    Group,
    Handle,
    Op,
    ProcessSet,
    Request,
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
    config,
    cross_rank,
    cross_size,
    empty,
    explain,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    info,
    init,
    is_initialized,
    join,
    join_async,
    local_rank,
    local_size,
    metrics,
    rank,
    reducescatter,
    reducescatter_async,
    shrink,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
    world_group,
)
from .errors import (
    AbortedError,
    AuthenticationError,
    Error,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ResourceError,
    ShutDownError,
    StallWarning,
    TimeoutError,
    TransportError,
    UnsupportedError,
)
from .run import RankError, run
from .termination import leave_if_requested, leave_if_told, on_leave

__all__ = [
    "AVERAGE",
    "AbortedError",
    "AuthenticationError",
    "BIT_AND",
    "BIT_OR",
    "BIT_XOR",
    "Communicator",
    "Error",
    "Group",
    "Handle",
    "InternalError",
    "InvalidArgumentError",
    "LOGICAL_AND",
    "LOGICAL_OR",
    "LOGICAL_XOR",
    "MAX",
    "MIN",
    "MismatchError",
    "NotInitializedError",
    "Op",
    "PRODUCT",
    "PeerLostError",
    "ProcessSet",
    "RankError",
    "Request",
    "ResourceError",
    "SUM",
    "ShutDownError",
    "StallWarning",
    "TimeoutError",
    "TransportError",
    "UnsupportedError",
    "__version__",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "config",
    "cross_rank",
    "cross_size",
    "elastic",
    "empty",
    "errors",
    "explain",
    "get_cmake_dir",
    "get_include",
    "get_pkgconfig_dir",
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
    "leave_if_requested",
    "leave_if_told",
    "local_rank",
    "local_size",
    "metrics",
    "on_leave",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "run",
    "shrink",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "world_group",
]

__version__ = _version()

#: The operators of reductions, as members of Op.
SUM = Op.SUM
AVERAGE = Op.AVERAGE
MIN = Op.MIN
MAX = Op.MAX
PRODUCT = Op.PRODUCT
BIT_AND = Op.BIT_AND
BIT_OR = Op.BIT_OR
BIT_XOR = Op.BIT_XOR
LOGICAL_AND = Op.LOGICAL_AND
LOGICAL_OR = Op.LOGICAL_OR
LOGICAL_XOR = Op.LOGICAL_XOR


def get_include():
    """The folder that contains <farandole/farandole.h>, for programs that use the C or C++ API of this wheel."""
    return _os.path.join(_os.path.dirname(__file__), "include")


def get_cmake_dir():
    """The folder for farandole_DIR, so that find_package(farandole) finds this wheel."""
    return _os.path.join(_os.path.dirname(__file__), "cmake")


def get_pkgconfig_dir():
    """The folder for PKG_CONFIG_PATH, so that `pkg-config farandole` finds this wheel."""
    return _os.path.join(_os.path.dirname(__file__), "pkgconfig")
