"""farandole.keras: the API of programs written for Horovod, for Keras 3 on TensorFlow, PyTorch and JAX."""

from .backend import require_keras

require_keras()

from .. import basics  # noqa: E402
from ..basics import *  # noqa: E402, F403 (basics.__all__ lists the names that all frameworks share)
from ..errors import HorovodInternalError  # noqa: E402
from . import callbacks, elastic  # noqa: E402
from .compression import Compression  # noqa: E402
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model  # noqa: E402
from .values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter  # noqa: E402

__all__ = basics.__all__ + [
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
