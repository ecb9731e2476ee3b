"""Arrays outside compiled functions: NumPy's views of JAX's memory, and JAX's arrays of results."""

import math

import jax
import numpy

from .. import errors

_SMALL_BYTES = 1 << 16  # Up to here copying arrays by a compiled function is faster than making JAX's of NumPy's.
_ALIGNMENT = 64  # of XLA's memory. JAX uses aligned memory of NumPy without a copy.


def view(array):
    """The array as NumPy's, row-major. Memory on the CPU is not copied; an array on a device is copied to the host.

    InvalidArgumentError if other processes have a part of it.
    """
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        raise errors.InvalidArgumentError(
            f"an array of shape {list(array.shape)} has parts in other processes of jax.distributed; give farandole an "
            "array of this process, such as one of its addressable_shards"
        )
    return numpy.asarray(array, order="C")


def fresh(like):
    """A new array of NumPy for a result, in memory that JAX can use without a copy."""
    size = math.prod(like.shape) * like.dtype.itemsize
    memory = numpy.empty(size + _ALIGNMENT, numpy.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + size].view(like.dtype).reshape(like.shape)


@jax.jit
def _copied(arrays):
    return [jax.numpy.copy(one) for one in arrays]


def small_copies(arrays):
    """New arrays of JAX with the values of small ones, in memory of the CPU; None if the arrays are not small ones of
    one CPU device.

    The caller may write into their memory (unsafe_buffer_pointer) until it gives them to others.
    """
    size = 0
    for one in arrays:
        if not isinstance(one, jax.Array) or one.size == 0 or len(one.devices()) != 1:
            return None
        size += one.nbytes
    if size > _SMALL_BYTES or any(next(iter(one.devices())).platform != "cpu" for one in arrays):
        return None
    return jax.block_until_ready(_copied(list(arrays)))


def of_memory(memory, shape, dtype):
    """The array of NumPy in memory that the core has allocated; None: an array without elements."""
    if memory is None:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer(memory, numpy.uint8).view(dtype).reshape(shape)


def to_jax(array, like=None):
    """JAX's array of a result that nothing else refers to; on the device of `like` if it is an array of JAX."""
    if isinstance(like, jax.Array) and len(like.devices()) == 1:
        return jax.device_put(array, next(iter(like.devices())))
    return jax.device_put(array)
