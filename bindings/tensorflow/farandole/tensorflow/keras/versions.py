"""Which Keras tf.keras is, and the check that Keras 3 runs on TensorFlow."""

import tensorflow as tf


def is_keras_2():
    """Whether tf.keras is Keras 2: before TensorFlow 2.16, and with TF_USE_LEGACY_KERAS=1 and the package tf_keras."""
    return int(getattr(tf.keras, "__version__", "2").split(".")[0]) < 3


def require_keras_on_tensorflow():
    """ImportError, with the remedy, if Keras 3 runs on another backend."""
    if tf.keras.config.backend() != "tensorflow":
        raise ImportError(
            f"farandole.tensorflow.keras: Keras runs on {tf.keras.config.backend()}; set KERAS_BACKEND=tensorflow "
            "before keras is imported, or import farandole.keras"
        )
