"""Arrays outside compiled functions: NumPy's views of JAX's memory, and JAX's arrays of results."""

import math

import jax
import numpy

_ALIGNMENT = 64  # of XLA's memory. JAX uses aligned memory of NumPy without a copy.


def view(array):
    """The array as NumPy's, row-major. Memory on the CPU is not copied; an array on a device is copied to the host."""
    return numpy.asarray(array, order="C")


def fresh(like):
    """A new array of NumPy for a result, in memory that JAX can use without a copy."""
    size = math.prod(like.shape) * like.dtype.itemsize
    memory = numpy.empty(size + _ALIGNMENT, numpy.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(like.dtype).reshape(like.shape)


def to_jax(array, like=None):
    """JAX's array of a result that nothing else refers to; on the device of `like` if it is an array of JAX."""
    if isinstance(like, jax.Array) and len(like.devices()) == 1:
        return jax.device_put(array, next(iter(like.devices())))
    return jax.device_put(array)
