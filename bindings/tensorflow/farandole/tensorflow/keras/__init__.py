"""farandole.tensorflow.keras: farandole.keras for Keras on TensorFlow, or the same interface for Keras 2."""

import importlib

from .versions import is_keras_2, require_keras_on_tensorflow

if is_keras_2():
    from .. import keras2 as _keras
    from ..keras2 import *  # noqa: F403
else:
    require_keras_on_tensorflow()
    from ... import keras as _keras
    from ...keras import *  # noqa: F403

# `from . import callbacks` would find the module of farandole.keras, which the lines above have imported.
callbacks = importlib.import_module(".callbacks", __name__)
elastic = importlib.import_module(".elastic", __name__)

__all__ = _keras.__all__
