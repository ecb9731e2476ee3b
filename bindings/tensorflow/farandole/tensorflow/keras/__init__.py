"""farandole.tensorflow.keras: farandole.keras for Keras on TensorFlow."""

from .versions import require_keras_on_tensorflow

require_keras_on_tensorflow()

from ... import keras as _keras  # noqa: E402 (the version of Keras is checked first)
from ...keras import *  # noqa: E402, F403
from . import callbacks, elastic  # noqa: E402, F401

__all__ = _keras.__all__
