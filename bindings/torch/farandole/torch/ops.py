"""Asynchronous and in-place operations. A handle is a number; synchronize(handle) returns the result, once.

Unnamed operations are counted for each process set and operation: all ranks of a set must submit its unnamed operations
of one kind in the same order.
"""

import itertools

import torch

from .. import _native, core, errors
from ..basics import Adasum, Average, Sum, check_adasum, checked_op, chosen_op, global_process_set, native_op
from ..operation import Operation
from ..world import member_names
from .handles import enqueue as _enqueue
from .handles import first_of as _first
from .handles import poll, synchronize, synchronize_all  # noqa: F401 (poll: part of this module's interface)
from .tensors import (
    DTYPES,
    checked,
    from_memory,
    on_host,
    one_device,
    place_of,
    stream_of,
    with_memory,
    within_reach,
)


def _checked_list(tensors, operation):
    """The tensors as a list. InvalidArgumentError if one cannot be used."""
    tensors = list(tensors)
    if not tensors:
        raise errors.InvalidArgumentError(f"{operation}: the list of tensors is empty; give at least one tensor")
    if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        one_device(tensors)
    return [checked(tensor) for tensor in tensors]


_NO_OP = int(core.Op.SUM)  # of operations without a reduction


def _operation(kind, name, stream, source, target=None, op=_NO_OP, root=0, prescale=1.0, postscale=1.0, splits=None,
               priority=0, compression=0):  # fmt: skip
    to, elements = (0, 0) if target is None else (target.data_ptr(), target.numel())
    return Operation(int(kind), name, source.data_ptr(), DTYPES[source.dtype], source.shape, to, elements, op, root,
                          float(prescale), float(postscale), splits, priority, place_of(source, stream),
                          compression)  # fmt: skip


_increment_version = torch.autograd.graph.increment_version


def _written(tensor):
    """Reports to autograd that the core writes into a tensor: a use of a stale saved value then raises an error."""
    if not tensor.is_inference():
        _increment_version(tensor)


def _reduction(average, op, process_set):
    op = chosen_op(average, op)
    if op == Adasum:
        check_adasum(process_set)
    return op


# ---- Allreduce ------------------------------------------------------------------------------------------------------


def submit_allreduce(sources, targets, names, group, op, prescale=1.0, postscale=1.0, priority=0, compressions=None,
                     bounds=None):  # fmt: skip
    """Submits allreduces as one unit and returns a handle, whose result is the list of targets.

    `compressions`: the number of each tensor's block format, or None. Their error bounds are appended to `bounds`.
    Tensors on a device that the core cannot use are copied to the host, and so are those of Adasum and compressed ones.
    """
    compressions = compressions if compressions is not None and any(compressions) else None
    bring = on_host if op == Adasum or compressions is not None else within_reach
    op = native_op(op)
    one_device(sources)
    near_sources = [bring(checked(source)) for source in sources]
    near_targets = [_near(target, source, near) for source, near, target in zip(sources, near_sources, targets)]
    stream = stream_of(near_sources)
    operations = [
        _operation(core.Kind.ALLREDUCE, name, stream, source, target, op, 0, prescale, postscale, None, priority, one)
        for name, source, target, one in zip(names, near_sources, near_targets, compressions or itertools.repeat(0))
    ]

    def finish(native):
        if compressions is not None and bounds is not None:
            bounds.extend(native.error_bound(index) for index, one in enumerate(compressions) if one)
        for target, near in zip(targets, near_targets):
            if target is not near:
                target.detach().copy_(near)
        return targets

    return _enqueue(group, operations, stream, (near_sources, near_targets), finish)


def _near(target, source, near_source):
    """The tensor that the core writes: the target itself if it is on the device of the core's source."""
    if target.device == near_source.device:
        return target
    return near_source if target is source else torch.empty_like(near_source)


def _allreduce_now(source, target, name, op, prescale, postscale, process_set, compression=0):
    """Runs one allreduce to its end, in the calling thread where possible."""
    group = process_set.group("Allreduce")
    with group.blocking_name("allreduce", name) as name:
        return _allreduce_as(name, group, source, target, op, prescale, postscale, compression)


def _allreduce_as(name, group, source, target, op, prescale, postscale, compression):
    if not source.is_cpu or compression:
        handle = submit_allreduce([source], [target], [name], group, op, prescale, postscale, 0, [compression])
        return synchronize(_first(handle))
    try:
        _native.allreduce(group.member(), name, source.data_ptr(), DTYPES[source.dtype], source.shape,
                          target.data_ptr(), native_op(op), prescale, postscale, (source, target))  # fmt: skip
    except errors.Error as error:
        raise errors.as_horovod(error) from None
    return target


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                    process_set=global_process_set):  # fmt: skip
    """Starts an allreduce and returns its handle. The result is a new tensor. Not differentiable.

    Tensors are contiguous; every rank of the set passes the same shape and type. `op`: Average (the default), Sum, Min,
    Max, Product or Adasum. `name` matches the operation with those of other ranks; None: the number of unnamed
    operations so far.
    """
    group = process_set.group("Allreduce")
    op = _reduction(average, op, process_set)
    output = torch.empty_like(checked(tensor).detach())
    with group.naming("allreduce", name) as name:
        return _first(submit_allreduce([tensor], [output], [name], group, op, prescale_factor, postscale_factor))


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                     process_set=global_process_set):  # fmt: skip
    """Starts an allreduce in place and returns its handle. The result is `tensor`."""
    group = process_set.group("Allreduce")
    op = _reduction(average, op, process_set)
    checked(tensor)
    with group.naming("allreduce", name) as name:
        handle = _first(submit_allreduce([tensor], [tensor], [name], group, op, prescale_factor, postscale_factor))
    _written(tensor)
    return handle


def allreduce(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
              process_set=global_process_set, compression=0):  # fmt: skip
    """Blocks and returns a new tensor. Not differentiable: see functions.allreduce. `compression`: a block format."""
    op = _reduction(average, op, process_set)
    output = torch.empty_like(checked(tensor).detach())
    return _allreduce_now(tensor, output, name, op, prescale_factor, postscale_factor, process_set, compression)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
               process_set=global_process_set):  # fmt: skip
    """Reduces a tensor in place and returns it. Not differentiable.

    InvalidArgumentError, a ValueError, if the arguments cannot be used. HorovodInternalError if the operation fails,
    for example because ranks pass different shapes.
    """
    op = _reduction(average, op, process_set)
    _allreduce_now(checked(tensor), tensor, name, op, prescale_factor, postscale_factor, process_set)
    _written(tensor)
    return tensor


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                            process_set=global_process_set):  # fmt: skip
    """Starts grouped_allreduce and returns its handle. The result is a list of new tensors."""
    process_set.group("Allreduce")  # raises the error of a set that this rank is not in
    op = _reduction(average, op, process_set)
    return start_grouped_allreduce(tensors, name, op, prescale_factor, postscale_factor, process_set)


def start_grouped_allreduce(tensors, name, op, prescale, postscale, process_set, compressions=None):
    """The same for a chosen `op`, with the number of each tensor's block format, or None."""
    group = process_set.group("Allreduce")
    tensors = _checked_list(tensors, "grouped_allreduce_async")
    outputs = [torch.empty_like(tensor.detach()) for tensor in tensors]
    with group.naming("grouped_allreduce", name) as base:
        names = member_names(base, len(tensors))
        return submit_allreduce(tensors, outputs, names, group, op, prescale, postscale, 0, compressions)


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                             process_set=global_process_set):  # fmt: skip
    """Starts grouped_allreduce in place and returns its handle. The result is the list of tensors."""
    group = process_set.group("Allreduce")
    op = _reduction(average, op, process_set)
    tensors = _checked_list(tensors, "grouped_allreduce_async_")
    with group.naming("grouped_allreduce", name) as base:
        names = member_names(base, len(tensors))
        handle = submit_allreduce(tensors, tensors, names, group, op, prescale_factor, postscale_factor)
    for tensor in tensors:
        _written(tensor)
    return handle


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0,
                       process_set=global_process_set):  # fmt: skip
    """Reduces several tensors in place as one unit and returns them as a list."""
    tensors = list(tensors)
    if not tensors:
        return []
    return synchronize(
        grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def sparse_allreduce_async(tensor, name, op, process_set=global_process_set):
    """Starts the reduction of a sparse COO tensor, by two allgathers. `op`: Average or Sum.

    Returns a function that waits and returns the sparse result. InvalidArgumentError if the tensor is not sparse.
    """
    if checked_op(op) not in (Average, Sum):
        raise ValueError("sparse_allreduce supports op=Average and op=Sum")
    if with_memory(tensor).layout is not torch.sparse_coo:
        raise errors.InvalidArgumentError(
            "sparse_allreduce: tensor is not sparse (COO); use allreduce, or to_sparse() first"
        )
    tensor = tensor.coalesce()
    indices = allgather_async(tensor.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor.values().contiguous(), f"{name}.values", process_set)

    def result():
        all_values, all_indices = synchronize_all([values, indices])
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.size(), check_invariants=False)

    return result


# ---- Allgather ------------------------------------------------------------------------------------------------------


def _refuse_scalar(tensor, operation):
    if tensor.dim() == 0:
        raise errors.also(errors.InvalidArgumentError, errors.HorovodInternalError)(
            f"{operation}: a tensor without dimensions has no rows; use unsqueeze(0)"
        )


def _rows_to_gather(tensors):
    for tensor in tensors:
        _refuse_scalar(tensor, "Allgather")
    return tensors


def _submit_allgather(tensors, names, group):
    near = [within_reach(tensor) for tensor in tensors]
    stream = stream_of(near)
    operations = [_operation(core.Kind.ALLGATHER, name, stream, one) for name, one in zip(names, near)]

    def finish(native):
        return [_allocated(native, index, tensor) for index, tensor in enumerate(tensors)]

    return _enqueue(group, operations, stream, near, finish)


def _allocated(native, index, tensor):
    memory, shape, _ = native.output(index)
    return from_memory(memory, shape, tensor.dtype, tensor.device)


def allgather_async(tensor, name=None, process_set=global_process_set):
    """Starts allgather and returns its handle. The result is a new tensor."""
    group = process_set.group("Allgather")
    tensors = _rows_to_gather([checked(tensor)])
    with group.naming("allgather", name) as name:
        return _first(_submit_allgather(tensors, [name], group))


def grouped_allgather_async(tensors, name=None, process_set=global_process_set):
    """Starts grouped_allgather and returns its handle. The result is a list of new tensors."""
    group = process_set.group("Allgather")
    tensors = _rows_to_gather(_checked_list(tensors, "grouped_allgather_async"))
    with group.naming("grouped_allgather", name) as base:
        return _submit_allgather(tensors, member_names(base, len(tensors)), group)


# ---- Broadcast ------------------------------------------------------------------------------------------------------


def _submit_broadcast(tensor, output, root_rank, name, process_set):
    group = process_set.group("broadcast")
    root = process_set.root(root_rank, "broadcast")
    source = within_reach(checked(tensor))
    target = _near(output, tensor, source)
    stream = stream_of([source])

    def finish(native):
        if target is not output:
            output.detach().copy_(target)
        return output

    with group.naming("broadcast", name) as name:
        one = _operation(core.Kind.BROADCAST, name, stream, source, target, root=root)
        return _enqueue(group, [one], stream, (source, target), finish)


def broadcast_async(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts a broadcast from rank `root_rank` of the world and returns its handle. The result is a new tensor."""
    return _submit_broadcast(tensor, torch.empty_like(checked(tensor).detach()), root_rank, name, process_set)


def broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set):
    """Starts a broadcast in place and returns its handle. The result is `tensor`."""
    handle = _submit_broadcast(tensor, tensor, root_rank, name, process_set)
    _written(tensor)
    return handle


def broadcast_(tensor, root_rank, name=None, process_set=global_process_set):
    """Writes the tensor of rank `root_rank` of the world into the tensor of every rank of the set, and returns it.

    HorovodInternalError if the operation fails.
    """
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


# ---- Alltoall -------------------------------------------------------------------------------------------------------


def _checked_splits(tensor, splits, size):
    if splits is None:
        if tensor.shape[0] % size:
            raise errors.InvalidArgumentError(
                f"splits not provided, but first dimension of tensor ({tensor.shape[0]}) is not divisible by the "
                f"number of workers ({size})."
            )
        return None
    if isinstance(splits, torch.Tensor):
        if splits.dtype is not torch.int32:
            raise errors.InvalidArgumentError("alltoall expects splits to contain 32-bit integer elements.")
        splits = splits.tolist()
    splits = [int(rows) for rows in splits]
    if len(splits) != size:
        raise errors.InvalidArgumentError(
            f"Number of entries in splits ({len(splits)}) does not equal number of workers ({size})."
        )
    if min(splits) < 0 or sum(splits) > tensor.shape[0]:
        raise errors.InvalidArgumentError(
            f"Sum of splits entries ({sum(splits)}) is greater than the first dimension of tensor ({tensor.shape[0]})."
            if min(splits) >= 0
            else f"splits {splits} has a negative entry."
        )
    return splits


def alltoall_async(tensor, splits=None, name=None, process_set=global_process_set):
    """Starts alltoall and returns its handle.

    The result is the pair (received rows, int32 tensor of rows from each rank).
    """
    group = process_set.group("Alltoall")
    _refuse_scalar(checked(tensor), "Alltoall")
    near = within_reach(tensor)
    rows = _checked_splits(tensor, splits, group.size)
    stream = stream_of([near])
    device = splits.device if isinstance(splits, torch.Tensor) else "cpu"

    def finish(native):
        memory, shape, received = native.output(0)
        output = from_memory(memory, shape, tensor.dtype, tensor.device)
        return output, torch.tensor(received, dtype=torch.int32, device=device)

    with group.naming("alltoall", name) as name:
        one = _operation(core.Kind.ALLTOALL, name, stream, near, splits=rows)
        return _enqueue(group, [one], stream, near, finish)


# ---- Reducescatter --------------------------------------------------------------------------------------------------


def _rows_to_reduce(tensors, op):
    if checked_op(op) not in (Average, Sum):
        raise errors.as_horovod(errors.UnsupportedError("Reducescatter currently only supports AVERAGE and SUM."))
    if any(tensor.dim() == 0 for tensor in tensors):
        raise errors.InvalidArgumentError("Reducescatter does not support scalar inputs")
    return tensors


def _submit_reducescatter(tensors, names, group, op, prescale, postscale):
    near = [within_reach(tensor) for tensor in tensors]
    stream = stream_of(near)
    operations = [
        _operation(core.Kind.REDUCE_SCATTER, name, stream, one, None, native_op(op), 0, prescale, postscale)
        for name, one in zip(names, near)
    ]

    def finish(native):
        return [_allocated(native, index, tensor) for index, tensor in enumerate(tensors)]

    return _enqueue(group, operations, stream, near, finish)


def reducescatter_async(tensor, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0,
                        postscale_factor=1.0):  # fmt: skip
    """Starts reducescatter and returns its handle. The result is a new tensor."""
    group = process_set.group("Reducescatter")
    tensors = _rows_to_reduce([checked(tensor)], op)
    with group.naming("reducescatter", name) as name:
        return _first(_submit_reducescatter(tensors, [name], group, op, prescale_factor, postscale_factor))


def grouped_reducescatter_async(tensors, name=None, op=Average, process_set=global_process_set, prescale_factor=1.0,
                                postscale_factor=1.0):  # fmt: skip
    """Starts grouped_reducescatter and returns its handle. The result is a list of new tensors."""
    group = process_set.group("Reducescatter")
    tensors = _rows_to_reduce(_checked_list(tensors, "grouped_reducescatter_async"), op)
    with group.naming("grouped_reducescatter", name) as base:
        names = member_names(base, len(tensors))
        return _submit_reducescatter(tensors, names, group, op, prescale_factor, postscale_factor)


# ---- Barrier and join -----------------------------------------------------------------------------------------------


def barrier(process_set=global_process_set):
    """Blocks until all ranks of the set have called it."""
    group = process_set.group("Barrier")
    try:
        core.barrier(group=group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def join(device=-1):
    """Declares that this rank has no more data, and blocks until all ranks have joined.

    Meanwhile this rank contributes zeros to the allreduces of the others. Returns the rank that joined last. `device`
    is ignored.
    """
    try:
        return core.join(global_process_set.group("Join"))
    except errors.Error as error:
        raise errors.as_horovod(error) from None
