"""horovod.torch: the interface for PyTorch."""

from importlib import util as _util

from farandole.torch import *  # noqa: F401,F403

from . import compression, functions, mpi_ops, optimizer, sync_batch_norm  # noqa: F401

if _util.find_spec("farandole.torch.elastic"):
    from . import elastic  # noqa: F401
