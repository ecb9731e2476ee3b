"""horovod.tensorflow: the interface for TensorFlow 2."""

from farandole.tensorflow import *  # noqa: F403
