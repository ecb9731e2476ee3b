"""horovod.tensorflow: the interface for TensorFlow 2."""

from farandole.tensorflow import *  # noqa: F403

from . import compression, elastic, functions, mpi_ops  # noqa: F401


def __getattr__(name):
    if name == "SyncBatchNormalization":  # imports Keras
        from farandole.tensorflow import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
