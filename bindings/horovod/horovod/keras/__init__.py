"""horovod.keras: the interface for Keras 3, on TensorFlow, PyTorch and JAX."""

from farandole.keras import *  # noqa: F403

from . import callbacks, elastic  # noqa: F401
