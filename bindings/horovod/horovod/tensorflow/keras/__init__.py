"""horovod.tensorflow.keras: the interface for Keras 3 on TensorFlow."""

from farandole.tensorflow.keras import *  # noqa: F403

from . import callbacks, elastic  # noqa: F401
