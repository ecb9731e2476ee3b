"""horovod.torch: the interface for PyTorch."""

from farandole.torch import *  # noqa: F403

from . import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm  # noqa: F401
