"""The check that TensorFlow is installed, and new enough."""

import re

OLDEST = (2, 13)  # the first with asynchronous kernels in its C API


def check():
    """ImportError, with the remedy, if TensorFlow is missing or too old."""
    try:
        import tensorflow
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError("farandole.tensorflow needs TensorFlow 2.13 or newer: pip install tensorflow") from error
    numbers = re.match(r"(\d+)\.(\d+)", tensorflow.__version__)
    if tuple(map(int, numbers.groups())) < OLDEST:
        raise ImportError(
            f"farandole.tensorflow needs TensorFlow 2.13 or newer, and this is {tensorflow.__version__}: "
            "pip install -U tensorflow"
        )
