"""Arrays: the memory of tensors of any kind, and new arrays for results."""

import importlib

from . import _native, errors
from .codes import DEVICE_CPU, DTYPE_NAMES


def numpy_module():
    import numpy

    return numpy


def as_array(tensor):
    """The tensor of an input: lists and numbers become arrays, NumPy's arrays that are not row-major are copied.

    Returns other objects unchanged.
    """
    if isinstance(tensor, (list, int, float, bool)):
        return numpy_module().asarray(tensor)
    if type(tensor).__module__ == "numpy":
        return numpy_module().asarray(tensor, order="C")
    return tensor


def numpy_dtype(code):
    name = DTYPE_NAMES[code]
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return numpy_module().dtype(getattr(ml_dtypes, name))
    return numpy_module().dtype(name)


def device_of(place):
    return (DEVICE_CPU, 0) if place is None else place[:2]


def device_name(place):
    return "the CPU" if place is None else f"device {place[1]} of kind {place[0]}"


def library_of(array):
    """The library of an array on a device. Results of operations on the array belong to it too."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return importlib.import_module(type(array).__module__.partition(".")[0])


def empty(tensor, shape, dtype, place):
    """A new array for a result: of NumPy, or of the tensor's own library if the tensor is on a device."""
    if place is None:
        return numpy_module().empty(shape, numpy_dtype(dtype))
    if hasattr(tensor, "is_cuda"):  # PyTorch, whose tensors may belong to a class of another module
        return importlib.import_module("torch").empty(shape, dtype=tensor.dtype, device=tensor.device)
    return library_of(tensor).empty(shape, dtype=tensor.dtype)


def memory_of(tensor):
    return _native.memory_of(tensor, False)


def count_of(tensor):
    count = 1
    for extent in memory_of(tensor)[2]:
        count *= extent
    return count


def same_count(tensor, out):
    count, capacity = count_of(tensor), count_of(out)
    if count != capacity:
        raise errors.InvalidArgumentError(f"the input has {count} elements, out has {capacity}; they must be the same")
    return count


def share(count, parts, operation):
    if count % parts:
        raise errors.InvalidArgumentError(
            f"{operation}: {count} elements do not divide among {parts} ranks; give counts"
        )
    return count // parts


def like(tensor):
    _, dtype, shape, _, place = memory_of(tensor)
    return empty(tensor, shape, dtype, place)


def flat(tensor, count):
    _, dtype, _, _, place = memory_of(tensor)
    return empty(tensor, (count,), dtype, place)


def stacked(tensor, parts):
    _, dtype, shape, _, place = memory_of(tensor)
    return empty(tensor, (parts, *shape), dtype, place)
