"""The backend that Keras runs on, and the module that reduces gradients there: on_tensorflow, on_torch or on_jax."""

import importlib

BACKENDS = ("tensorflow", "torch", "jax")

_REMEDY = 'set KERAS_BACKEND before keras is imported: os.environ["KERAS_BACKEND"] = "tensorflow", "torch" or "jax"'


def require_keras():
    """ImportError, with the remedy, if Keras is missing, older than 3, or on a backend without collectives."""
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name == "keras":
            raise ImportError("farandole.keras needs Keras 3: pip install keras") from error
        raise ImportError(f"Keras needs {error.name}, which is not installed; install it, or {_REMEDY}") from error
    if not hasattr(keras, "config") or int(keras.__version__.split(".")[0]) < 3:
        raise ImportError(
            f"farandole.keras needs Keras 3, and this is {keras.__version__}: import farandole.tensorflow.keras, or "
            "pip install -U keras"
        )
    if keras.config.backend() not in BACKENDS:
        raise ImportError(f"farandole.keras does not work with Keras on {keras.config.backend()}: {_REMEDY}")


def module():
    """The module for this process's backend. The three modules have the same functions."""
    import keras

    return importlib.import_module(f".on_{keras.config.backend()}", __package__)
