"""The check that tf.keras is Keras 3 and runs on TensorFlow."""

import tensorflow as tf


def require_keras_on_tensorflow():
    """ImportError, with the remedy, if tf.keras is Keras 2, or Keras runs on another backend."""
    version = getattr(tf.keras, "__version__", "2")
    if int(version.split(".")[0]) < 3:
        raise ImportError(
            f"farandole.tensorflow.keras needs Keras 3, and tf.keras is {version}: install TensorFlow 2.16 or newer, "
            "and unset TF_USE_LEGACY_KERAS; with Keras 2 train in a loop with "
            "farandole.tensorflow.DistributedGradientTape"
        )
    if tf.keras.config.backend() != "tensorflow":
        raise ImportError(
            f"farandole.tensorflow.keras: Keras runs on {tf.keras.config.backend()}; set KERAS_BACKEND=tensorflow "
            "before keras is imported, or import farandole.keras"
        )
