"""Collectives outside compiled functions: the core reads and writes the memory of arrays directly."""

import contextlib

from .. import _native, errors
from ..codes import Kind
from ..operation import Operation
from ..world import member_names
from . import arrays

_WRITES_IN_PLACE = (Kind.ALLREDUCE, Kind.BROADCAST)  # into memory of the caller; other results are allocated


@contextlib.contextmanager
def horovod_errors():
    """Raises failures with the classes that programs written for Horovod expect."""
    try:
        yield
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def call(kind, group, operation, name, leaves, *, op, root=0, prescale=1.0, postscale=1.0, splits=None):
    """One unit of operations on arrays, to its end. Returns the results, and the received rows of an alltoall.

    HorovodInternalError if the operation fails.
    """
    views = [arrays.view(one) for one in leaves]
    memory = [_native.memory_of(one, False) for one in views]
    made = arrays.small_copies(leaves) if kind in _WRITES_IN_PLACE else None
    if made is not None:  # in place
        outs = sources = [one.unsafe_buffer_pointer() for one in made]
    else:
        fresh = [arrays.fresh(one) if kind in _WRITES_IN_PLACE else None for one in views]
        sources, outs = [pointer for pointer, *_ in memory], [_address(out) for out in fresh]
    with horovod_errors(), group.blocking_name(operation, name) as base:
        names = [base] if len(views) == 1 else member_names(base, len(views))
        operations = [
            Operation(int(kind), one_name, source, dtype, shape, out, view.size, op, root, prescale, postscale, splits,
                      0, None)
            for one_name, source, out, view, (_, dtype, shape, _, _) in zip(names, sources, outs, views, memory)
        ]  # fmt: skip
        handle = _native.run(group.member(), operations, (views, made or fresh))
        if made is not None:
            return made, None
        results = [_allocated(handle, index, view) if out is None else (out, None)
                   for index, (view, out) in enumerate(zip(views, fresh))]  # fmt: skip
    return [arrays.to_jax(array, leaf) for (array, _), leaf in zip(results, leaves)], results[0][1]


def _address(out):
    return 0 if out is None else out.__array_interface__["data"][0]


def _allocated(handle, index, view):
    memory, shape, received = handle.output(index)
    return arrays.of_memory(memory, shape, view.dtype), received
