"""Memory that the ranks of a host share, symmetric memory on devices, and the use of devices."""

import math
import warnings

from . import _native, errors
from .world import chosen_group, current


def allocate(nbytes):
    """Allocates `nbytes` of zeroed memory that all ranks of the host map, where possible. It supports the buffer
    protocol.

    The memory is freed when no object refers to it any more, also after shutdown. Collectives on such memory need no
    copies between the ranks of a host.
    """
    return _native.Memory(current().native, errors.checked_number(nbytes, "nbytes", errors.SIZE))


def allocate_on_device(nbytes, place, group=None):
    """Allocates `nbytes` of zeroed symmetric memory on a device, for the group's named operations.

    All members of the group call it in the same order and with the same `nbytes`. `place` is the device's kind
    (codes.DEVICE_CUDA), its index, and the stream on which the memory is zeroed and freed. The result has
    __cuda_array_interface__; it is freed when no object refers to it any more.
    """
    nbytes = errors.checked_number(nbytes, "nbytes", errors.SIZE)
    return _native.DeviceMemory(chosen_group(group).member(), *place, nbytes)


def empty(shape, dtype="float32"):
    """A NumPy array of zeros of this shape and dtype in memory that the ranks of a host share.

    See allocate() for its lifetime. An array without elements is ordinary memory.
    """
    import numpy

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if isinstance(dtype, (str, bytes)):
        errors.checked_text(dtype, "dtype")
    try:
        array = numpy.dtype(dtype)
    except (TypeError, ValueError):
        raise errors.InvalidArgumentError(f'dtype={dtype!r} is none of NumPy\'s; give one, such as "float32"') from None
    count = math.prod(shape)
    if count == 0:
        return numpy.empty(shape, array)
    return numpy.frombuffer(allocate(count * array.itemsize), dtype=array, count=count).reshape(shape)


def open_device(kind, index):
    """Opens a device before its first use.

    UnsupportedError, with the reason, if it cannot be used. `kind`: codes.DEVICE_CUDA.
    """
    current().native.open_device(kind, index)


def can_use_device(kind, index):
    """Whether tensors can stay on a device. The first failure for a device is reported as a RuntimeWarning."""
    known = current().devices
    if (kind, index) not in known:
        try:
            open_device(kind, index)
            known[kind, index] = True
        except errors.Error as error:
            warnings.warn(f"{error}; its tensors go through memory of the host", RuntimeWarning, stacklevel=2)
            known[kind, index] = False
    return known[kind, index]
