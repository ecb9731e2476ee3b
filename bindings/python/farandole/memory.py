"""Memory that the ranks of a host share, and whether tensors may stay on a device."""

import math
import warnings

from . import _native, errors
from .world import current, world_group


def allocate(nbytes):
    """Zeroed memory that all ranks of the host map where they can, by the buffer protocol; freed when nothing looks
    into it any more, also after shutdown. Collectives on such memory need no copies between the ranks of a host."""
    return _native.Memory(current().native, nbytes)


def allocate_on_device(nbytes, place, group=None):
    """Zeroed memory of a device for tensors of the group's operations by name, by __cuda_array_interface__; freed when
    nothing looks into it any more. All members of the group call it, in one order and for as many bytes. `place`: the
    device's kind (codes.DEVICE_CUDA) and index, and the stream in whose order it is zeroed and, in the end, freed."""
    return _native.DeviceMemory((group or world_group()).member(), *place, nbytes)


def empty(shape, dtype="float32"):
    """A NumPy array of zeros in such memory."""
    import numpy

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    array = numpy.dtype(dtype)
    count = math.prod(shape)
    if count == 0:
        return numpy.empty(shape, array)
    return numpy.frombuffer(allocate(count * array.itemsize), dtype=array, count=count).reshape(shape)


def open_device(kind, index):
    """Opens a device before it is first used; UnsupportedError says why it cannot be. `kind`: codes.DEVICE_CUDA."""
    current().native.open_device(kind, index)


def can_use_device(kind, index):
    """Whether tensors may stay on a device. Asked once; what speaks against it is a warning, once."""
    known = current().devices
    if (kind, index) not in known:
        try:
            open_device(kind, index)
            known[kind, index] = True
        except errors.Error as error:
            warnings.warn(f"{error}; its tensors go through memory of the host", RuntimeWarning, stacklevel=2)
            known[kind, index] = False
    return known[kind, index]
