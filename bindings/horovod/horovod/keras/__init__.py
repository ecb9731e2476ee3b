"""horovod.keras: the interface for Keras 3, on PyTorch."""

from farandole.keras import *  # noqa: F403

from . import callbacks, elastic  # noqa: F401
