"""The releases of JAX that this package supports."""

import jax
import jaxlib

OLDEST = (0, 5)  # Before 0.5, XLA's table of functions differs under the same version number, and calls would crash.


def numbers(version):
    """The first two numbers of a release: (0, 7) of "0.7.2"."""
    return tuple(int(part) for part in version.split(".")[:2])


def check():
    """ImportError if JAX is too old."""
    if numbers(jaxlib.__version__) < OLDEST:
        raise ImportError(
            f"farandole.jax needs JAX 0.5 or newer, and jaxlib {jaxlib.__version__} is installed; run: "
            f"pip install -U jax (jax is {jax.__version__})"
        )
