"""farandole.jax: Horovod's functions for JAX, in compiled functions and outside of them."""

from . import versions as _versions

_versions.check()

from .. import basics  # noqa: E402 (the version of JAX is checked first)
from ..basics import *  # noqa: E402, F403 (basics.__all__ lists the names that all frameworks share)
from ..errors import HorovodInternalError  # noqa: E402
from . import elastic  # noqa: E402
from .compiled import make_token  # noqa: E402
from .compression import Compression  # noqa: E402
from .functions import allgather, allreduce, alltoall, barrier, broadcast, join, reducescatter  # noqa: E402
from .native import error_of  # noqa: E402
from .optimizer import distributed_optimizer  # noqa: E402
from .state import allgather_object, broadcast_object, broadcast_variables  # noqa: E402

__all__ = basics.__all__ + [
    "Compression",
    "HorovodInternalError",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "distributed_optimizer",
    "elastic",
    "error_of",
    "join",
    "make_token",
    "reducescatter",
]
