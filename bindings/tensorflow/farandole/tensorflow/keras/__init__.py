"""farandole.tensorflow.keras: farandole.keras for Keras on TensorFlow."""

import importlib

from .versions import require_keras_on_tensorflow

require_keras_on_tensorflow()

from ... import keras as _keras  # noqa: E402 (the version of Keras is checked first)
from ...keras import *  # noqa: E402, F403

# `from . import callbacks` would find farandole.keras's, which the line above has imported.
callbacks = importlib.import_module(".callbacks", __name__)
elastic = importlib.import_module(".elastic", __name__)

__all__ = _keras.__all__
