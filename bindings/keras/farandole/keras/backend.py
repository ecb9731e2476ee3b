"""The check that Keras is version 3 on PyTorch."""

_REMEDY = 'set KERAS_BACKEND=torch before keras is imported: os.environ["KERAS_BACKEND"] = "torch"'


def require_torch():
    """ImportError, with the remedy, if Keras is missing, older than 3, or not on PyTorch."""
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name == "keras":
            raise ImportError("farandole.keras needs Keras 3: pip install keras") from error
        raise ImportError(
            f"farandole.keras works with Keras on PyTorch, and Keras needs {error.name}: {_REMEDY}"
        ) from error
    if not hasattr(keras, "config") or int(keras.__version__.split(".")[0]) < 3:
        raise ImportError(f"farandole.keras needs Keras 3, and this is {keras.__version__}: pip install -U keras")
    if keras.config.backend() != "torch":
        raise ImportError(
            f"farandole.keras works with Keras on PyTorch, and this is on {keras.config.backend()}: {_REMEDY}"
        )
