"""farandole.tensorflow.keras where tf.keras is Keras 2: that of TensorFlow 2.12 to 2.15, or the package tf_keras."""

from ... import basics
from ...basics import *  # noqa: F403 (basics.__all__ lists the names that all frameworks share)
from ...errors import HorovodInternalError
from ..compression import Compression
from . import callbacks, elastic
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
from .values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter

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
