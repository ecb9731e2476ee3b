"""horovod.tensorflow.keras: the interface for Keras 3 on TensorFlow, and for Keras 2."""

import importlib

from farandole.tensorflow.keras import *  # noqa: F403

# `from . import callbacks` would find farandole's module, which the line above has imported.
callbacks = importlib.import_module(".callbacks", __name__)
elastic = importlib.import_module(".elastic", __name__)
