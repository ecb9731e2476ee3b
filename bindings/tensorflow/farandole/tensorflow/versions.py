"""The check that TensorFlow is installed, and which ops its release can have."""

import re
import sys

_OLDEST = (2, 12)
_FIRST_WITH_ASYNCHRONOUS_KERNELS = (2, 13)


def release():
    """The release of TensorFlow, such as (2, 21)."""
    import tensorflow

    return tuple(map(int, re.match(r"(\d+)\.(\d+)", tensorflow.__version__).groups()))


def check():
    """ImportError, with the remedy, if TensorFlow is missing or too old."""
    try:
        found = release()
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError("farandole.tensorflow needs TensorFlow 2.13 or newer: pip install tensorflow") from error
    if found < _OLDEST:
        raise ImportError(
            f"farandole.tensorflow needs TensorFlow 2.13 or newer, and this is {found[0]}.{found[1]}: "
            "pip install -U tensorflow"
        )


def has_asynchronous_kernels():
    """Whether this release has the functions that the native ops need. If not, one line says so."""
    found = release()
    if found >= _FIRST_WITH_ASYNCHRONOUS_KERNELS:
        return True
    print(
        f"farandole: TensorFlow {found[0]}.{found[1]} lacks asynchronous kernels, so collectives run in "
        "tf.numpy_function, which is slower; TensorFlow 2.13 or newer has them",
        file=sys.stderr,
        flush=True,
    )
    return False
