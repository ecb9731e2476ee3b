"""Named operations. They match by name, in any order. Each has a blocking form and one that returns a Handle."""

import math

from . import _native, errors
from .arrays import as_array, device_name, device_of, empty, library_of, numpy_dtype, numpy_module
from .codes import DTYPE_NAMES, Kind, Op, number_of, number_of_compression
from .operation import Operation
from .world import chosen_group, member_names

_NO_OP = int(Op.SUM)  # of operations without a reduction


class Handle:
    """An asynchronous named operation. Its tensors must not be changed until it is done.

    After wait(), `error_bound` is, for an operation with a compression, a bound of the largest absolute error over all
    elements and ranks of the operations that ran together; the same on every rank, math.inf if a value is not finite.
    """

    error_bound = 0.0

    def __init__(self, native, finish, compressed=0):
        self._native = native
        self._finish = finish
        self._compressed = compressed  # the number of compressed operations
        self._result = None

    def done(self):
        """Whether the operation has completed or failed. Does not block."""
        return self._native is None or self._native.done()

    def wait(self, timeout=None):
        """Blocks until the operation is done and returns its result. Raises its failure; a second call does the same.

        `timeout`: seconds until TimeoutError, which leaves the operation in flight; None: no limit.
        """
        if self._native is not None:
            self._native.wait(-1.0 if timeout is None else float(timeout))
            self._result = self._finish(self._native)
            self.error_bound = max(map(self._native.error_bound, range(self._compressed)), default=0.0)
            self._native = None
        return self._result


class _Submitted:
    """One operation of a submission: its memory, and the source of its result."""

    def __init__(self, kind, name, tensor, out=None, allocates=False, op=_NO_OP, root=0, prescale=1.0, postscale=1.0,
                 splits=None, priority=0, compression=None):  # fmt: skip
        tensor = as_array(tensor)
        pointer, self.dtype, self.shape, self.owner, self.place = _native.memory_of(tensor, False)
        self.tensor = tensor
        self.out, self.allocates, self.has_splits = out, allocates, splits is not None
        target, self.target_owner = 0, None
        if not allocates:
            if out is None:
                self.out = empty(tensor, self.shape, self.dtype, self.place)
            target, dtype, shape, self.target_owner, place = _native.memory_of(self.out, True)
            if device_of(place) != device_of(self.place):
                raise errors.InvalidArgumentError(
                    f"{name}: out is on {device_name(place)}, the input on {device_name(self.place)}; "
                    "they must be on the same device"
                )
            if dtype != self.dtype or tuple(shape) != tuple(self.shape):
                raise errors.InvalidArgumentError(
                    f"{name}: out has shape {list(shape)} and type {DTYPE_NAMES[dtype]}, the input "
                    f"{list(self.shape)} and {DTYPE_NAMES[self.dtype]}; they must be the same"
                )
        self.operation = Operation(
            int(kind),
            name,
            pointer,
            self.dtype,
            self.shape,
            target,
            math.prod(self.shape),
            op,
            int(root),
            float(prescale),
            float(postscale),
            splits,
            int(priority),
            self.place,
            number_of_compression(compression),
        )

    def result(self, native, index):
        if not self.allocates:
            return self.out
        memory, shape, received = native.output(index)
        if memory is None:
            array = empty(self.tensor, shape, self.dtype, self.place)
        elif self.place is not None:
            # A copy, because the caller may use the array on any stream and for any time.
            array = library_of(self.tensor).asarray(memory).view(self.tensor.dtype).reshape(shape).copy()
        else:
            array = numpy_module().frombuffer(memory, numpy_dtype(self.dtype)).reshape(shape)
        return (array, list(received)) if self.has_splits else array


def _checked_list(tensors, operation):
    tensors = list(tensors)
    if not tensors:
        raise errors.InvalidArgumentError(f"{operation}: the list of tensors is empty; give at least one tensor")
    return tensors


def _submit(group, submitted, single=True):
    native = group.member()
    handle = _native.submit(native, [one.operation for one in submitted], submitted)

    def finish(done):
        results = [one.result(done, index) for index, one in enumerate(submitted)]
        return results[0] if single else results

    return Handle(handle, finish, len(submitted) if submitted[0].operation.compression else 0)


def _run(group, submitted):
    """Submits and waits, in the calling thread where possible."""
    done = _native.run(group.member(), [one.operation for one in submitted], submitted)
    return submitted[0].result(done, 0)


def allreduce_async(tensor, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0, priority=0,
                    compression=None):  # fmt: skip
    """Starts allreduce and returns its Handle. Operations match by name, in any order."""
    group = chosen_group(group)
    op = number_of(op)
    with group.naming("allreduce", name) as name:
        return _submit(group, [_Submitted(Kind.ALLREDUCE, name, tensor, out, op=op, prescale=prescale,
                                          postscale=postscale, priority=priority,
                                          compression=compression)])  # fmt: skip


def allreduce(tensor, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0, priority=0,
              compression=None):  # fmt: skip
    """Computes postscale * op over ranks of (prescale * tensor). Every rank gets the result, in the tensor's shape.

    `tensor`: a NumPy array, a tensor with the buffer protocol or `__dlpack__`, a list, or a number.
    `name`: matches the operation with those of other ranks; None: the number of unnamed operations so far.
    `out`: the array for the result; out=tensor works in place.
    `group`: the ranks that take part; None: all.
    `priority`: operations that are ready at the same time start with the highest priority.
    `compression`: None, or "int8", "int4", "float8_e4m3", "float8_e5m2" or "bfloat16" for a sum or average of float32
    tensors on the CPU, whose values then pass between ranks in that format. allreduce_async(...) has the error bound.

    InvalidArgumentError for unusable arguments, before anything is sent. MismatchError if ranks submit different
    shapes, types or operators under one name. PeerLostError names a rank that was lost.
    """
    group = chosen_group(group)
    op = number_of(op)
    with group.blocking_name("allreduce", name) as name:
        return _run(group, [_Submitted(Kind.ALLREDUCE, name, tensor, out, op=op, prescale=prescale,
                                       postscale=postscale, priority=priority, compression=compression)])  # fmt: skip


def grouped_allreduce_async(tensors, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0,
                            priority=0, compression=None):  # fmt: skip
    """Starts grouped_allreduce and returns its Handle. `out`: a list with one array for each tensor.

    The operations are one unit: none starts before all are ready on all ranks.
    """
    group = chosen_group(group)
    op = number_of(op)
    tensors = _checked_list(tensors, "grouped_allreduce")
    outs = list(out) if out is not None else [None] * len(tensors)
    if len(outs) != len(tensors):
        raise errors.InvalidArgumentError(
            f"grouped_allreduce: out has {len(outs)} arrays for {len(tensors)} tensors; pass one for each tensor"
        )

    def submitted(one_name, tensor, one_out):
        return _Submitted(Kind.ALLREDUCE, one_name, tensor, one_out, op=op, prescale=prescale, postscale=postscale,
                          priority=priority, compression=compression)  # fmt: skip

    with group.naming("grouped_allreduce", name) as base:
        names = member_names(base, len(tensors))
        return _submit(group, list(map(submitted, names, tensors, outs)), single=False)


def grouped_allreduce(tensors, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0, priority=0,
                      compression=None):  # fmt: skip
    """Combines several tensors, each over all ranks, as one unit. Returns the list of results.

    The keywords are those of allreduce; `out` is a list. None of the operations starts before all are ready on all
    ranks.
    """
    return grouped_allreduce_async(tensors, op, name=name, out=out, group=group, prescale=prescale,
                                   postscale=postscale, priority=priority, compression=compression).wait()  # fmt: skip


def allgather_async(tensor, *, name=None, group=None, compression=None):
    """Starts allgather and returns its Handle."""
    group = chosen_group(group)
    with group.naming("allgather", name) as name:
        return _submit(group, [_Submitted(Kind.ALLGATHER, name, tensor, allocates=True, compression=compression)])


def allgather(tensor, *, name=None, group=None, compression=None):
    """The tensors of all ranks, joined along their first dimension.

    The first dimension may differ between ranks; the others must be equal, else MismatchError.
    """
    return allgather_async(tensor, name=name, group=group, compression=compression).wait()


def grouped_allgather_async(tensors, *, name=None, group=None):
    """Starts grouped_allgather and returns its Handle."""
    group = chosen_group(group)
    tensors = _checked_list(tensors, "grouped_allgather")
    with group.naming("grouped_allgather", name) as base:
        submitted = [_Submitted(Kind.ALLGATHER, one, tensor, allocates=True)
                     for one, tensor in zip(member_names(base, len(tensors)), tensors)]  # fmt: skip
        return _submit(group, submitted, single=False)


def grouped_allgather(tensors, *, name=None, group=None):
    """Gathers several tensors, each as allgather does, as one unit. Returns the list of results."""
    return grouped_allgather_async(tensors, name=name, group=group).wait()


def broadcast_async(tensor, root=0, *, name=None, out=None, group=None):
    """Starts broadcast and returns its Handle."""
    group = chosen_group(group)
    with group.naming("broadcast", name) as name:
        return _submit(group, [_Submitted(Kind.BROADCAST, name, tensor, out, root=root)])


def broadcast(tensor, root=0, *, name=None, out=None, group=None):
    """The tensor of rank `root` of the group, on every rank, as a new array or in `out`.

    The tensors of other ranks only give shape and type. MismatchError if these differ between ranks.
    """
    group = chosen_group(group)
    with group.blocking_name("broadcast", name) as name:
        return _run(group, [_Submitted(Kind.BROADCAST, name, tensor, out, root=root)])


def alltoall_async(tensor, splits=None, *, name=None, group=None):
    """Starts alltoall and returns its Handle."""
    group = chosen_group(group)
    if splits is not None:
        splits = _native.checked_counts("alltoall: splits", splits, group.size)
    with group.naming("alltoall", name) as name:
        return _submit(group, [_Submitted(Kind.ALLTOALL, name, tensor, allocates=True, splits=splits)])


def alltoall(tensor, splits=None, *, name=None, group=None):
    """Sends splits[r] rows (entries of the first dimension) to each rank r, and returns the received rows.

    Without `splits` all ranks get the same number of rows. With `splits` the result is a pair: the rows, and the list
    of how many came from each rank.
    """
    return alltoall_async(tensor, splits, name=name, group=group).wait()


def reducescatter_async(tensor, op=Op.SUM, *, name=None, group=None, prescale=1.0, postscale=1.0, compression=None):
    """Starts reducescatter and returns its Handle."""
    group = chosen_group(group)
    op = number_of(op)
    with group.naming("reducescatter", name) as name:
        return _submit(group, [_Submitted(Kind.REDUCE_SCATTER, name, tensor, allocates=True, op=op, prescale=prescale,
                                          postscale=postscale, compression=compression)])  # fmt: skip


def reducescatter(tensor, op=Op.SUM, *, name=None, group=None, prescale=1.0, postscale=1.0, compression=None):
    """Combines the tensors of all ranks by `op` and returns this rank's rows (entries of the first dimension).

    If the rows do not divide evenly, the first ranks get one more.
    """
    return reducescatter_async(tensor, op, name=name, group=group, prescale=prescale, postscale=postscale,
                               compression=compression).wait()  # fmt: skip


def grouped_reducescatter_async(tensors, op=Op.SUM, *, name=None, group=None, prescale=1.0, postscale=1.0):
    """Starts grouped_reducescatter and returns its Handle."""
    group = chosen_group(group)
    op = number_of(op)
    tensors = _checked_list(tensors, "grouped_reducescatter")
    with group.naming("grouped_reducescatter", name) as base:
        submitted = [
            _Submitted(Kind.REDUCE_SCATTER, one, tensor, allocates=True, op=op, prescale=prescale, postscale=postscale)
            for one, tensor in zip(member_names(base, len(tensors)), tensors)
        ]
        return _submit(group, submitted, single=False)


def grouped_reducescatter(tensors, op=Op.SUM, *, name=None, group=None, prescale=1.0, postscale=1.0):
    """Reduces and scatters several tensors, each as reducescatter does, as one unit. Returns the list of results."""
    handle = grouped_reducescatter_async(tensors, op, name=name, group=group, prescale=prescale, postscale=postscale)
    return handle.wait()


def barrier_async(*, name=None, group=None):
    """Starts a barrier and returns its Handle, whose result is None."""
    group = chosen_group(group)
    with group.naming("barrier", name) as name:
        handle = _native.submit(group.member(), [Operation(int(Kind.BARRIER), name)], None)
    return Handle(handle, lambda done: None)


def barrier(*, name=None, group=None):
    """Blocks until all ranks of the group have called it. Keywords: `name`, `group`."""
    group = chosen_group(group)
    with group.blocking_name("barrier", name) as name:
        _native.run(group.member(), [Operation(int(Kind.BARRIER), name)], None)


def join_async(group=None):
    """Starts join and returns its Handle."""
    group = chosen_group(group)
    with group.counts:
        handle = _native.join(group.member())
        group.start_names_after_join()
    return Handle(handle, lambda done: done.last_joined())


def join(group=None):
    """Declares that this rank has no more data, and blocks until all ranks of the group have joined.

    Meanwhile this rank contributes zeros to the allreduces of the others. Returns the rank that joined last.
    """
    return join_async(group).wait()
