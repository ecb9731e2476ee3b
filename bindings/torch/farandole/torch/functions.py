"""Collectives that support autograd: the gradient of a collective is a collective too.

Conventions of the gradients: those of allreduce and alltoall belong to the sum of all ranks' losses. Programs written
for Horovod expect others of three operations: those of allgather and broadcast are averages over ranks, and those of
reducescatter are the sum's derivative times the number of ranks.
"""

import torch

from ..basics import Average, Sum, chosen_op, global_process_set
from . import ops
from .compression import Compression, block_format_of


def _named_gradient(name):
    return None if name is None else f"{name}.grad"


class _NoContext:
    """Takes what forward() keeps for a backward pass that does not come."""

    def mark_non_differentiable(self, *_):
        pass


def _run(function, *arguments):
    """Calls an autograd function. Where no gradient can pass, without autograd, which costs several times the call."""
    if torch.is_grad_enabled():
        for one in arguments:
            if isinstance(one, torch.Tensor) and one.requires_grad:
                return function.apply(*arguments)
    return function.forward(_NoContext(), *arguments)


def _linear(op):
    if op not in (Average, Sum):
        raise NotImplementedError("gradients pass through op=Average and op=Sum only")


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, prescale, postscale, process_set, block_format=0):
        ctx.arguments = (_named_gradient(name), op, prescale, postscale, process_set, block_format)
        return ops.allreduce(tensor, None, name, op, prescale, postscale, process_set, block_format)

    @staticmethod
    def backward(ctx, gradient):
        name, op, prescale, postscale, process_set, block_format = ctx.arguments
        _linear(op)
        reduced = ops.allreduce(gradient.contiguous(), None, name, op, prescale, postscale, process_set, block_format)
        return (reduced, *[None] * 6)


def allreduce(tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
              postscale_factor=1.0, process_set=global_process_set):  # fmt: skip
    """Computes postscale * op over ranks of (prescale * tensor). Returns a new tensor. Differentiable for Average and
    Sum.

    Tensors are contiguous; every rank of the set passes the same shape and type. `op`: Average (the default), Sum, Min,
    Max, Product or Adasum. `name` matches the operation with those of other ranks; None: the number of unnamed
    operations so far. `compression` is applied before sending.

    InvalidArgumentError, a ValueError, if the arguments cannot be used. HorovodInternalError if the operation fails,
    for example because ranks pass different shapes.
    """
    op = chosen_op(average, op)
    if block_format := block_format_of(compression, tensor):
        return _run(_Allreduce, tensor, name, op, prescale_factor, postscale_factor, process_set, block_format)
    small, ctx = compression.compress(tensor)
    result = _run(_Allreduce, small, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(result, ctx)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, block_formats, *tensors):
        ctx.arguments = (_named_gradient(name), op, prescale, postscale, process_set, block_formats)
        handle = ops.start_grouped_allreduce(tensors, name, op, prescale, postscale, process_set, block_formats)
        return tuple(ops.synchronize(handle))

    @staticmethod
    def backward(ctx, *gradients):
        name, op, prescale, postscale, process_set, block_formats = ctx.arguments
        _linear(op)
        gradients = [gradient.contiguous() for gradient in gradients]
        handle = ops.start_grouped_allreduce(gradients, name, op, prescale, postscale, process_set, block_formats)
        return (*[None] * 6, *ops.synchronize(handle))


def grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0,
                      postscale_factor=1.0, process_set=global_process_set):  # fmt: skip
    """Reduces several tensors as one unit, each as allreduce does. Returns the list of results. Differentiable.

    None of the reductions starts before all tensors are ready on all ranks.
    """
    op = chosen_op(average, op)
    tensors = list(tensors)
    if not tensors:
        return []
    formats = [block_format_of(compression, tensor) for tensor in tensors]
    small = [(one, None) if format else compression.compress(one) for one, format in zip(tensors, formats)]
    results = _run(
        _GroupedAllreduce, name, op, prescale_factor, postscale_factor, process_set, formats, *[one for one, _ in small]
    )
    return [
        result if format else compression.decompress(result, ctx)
        for result, format, (_, ctx) in zip(results, formats, small)
    ]


def _my_rows(gradient, rows, name, process_set):
    """This rank's rows of the average over ranks of a gathered tensor's gradient."""
    average = ops.synchronize(ops.allreduce_async(gradient.contiguous(), None, name, Average, 1.0, 1.0, process_set))
    counts_name = None if name is None else f"{name}.rows"
    counts = ops.synchronize(ops.allgather_async(torch.tensor([rows]), counts_name, process_set))
    start = int(counts[: process_set.rank()].sum())
    return average.narrow(0, start, rows)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, process_set):
        output = ops.synchronize(ops.allgather_async(tensor, name, process_set))
        ctx.arguments = (tensor.shape[0], _named_gradient(name), process_set)
        return output

    @staticmethod
    def backward(ctx, gradient):
        return _my_rows(gradient, *ctx.arguments), None, None


def allgather(tensor, name=None, process_set=global_process_set):
    """The tensors of all ranks, joined along their first dimension, which may differ between ranks. Differentiable.

    InvalidArgumentError, a ValueError, if the arguments cannot be used. HorovodInternalError if the operation fails,
    for example because ranks pass different shapes.
    """
    return _run(_Allgather, tensor, name, process_set)


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, process_set, *tensors):
        outputs = ops.synchronize(ops.grouped_allgather_async(tensors, name, process_set))
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.arguments = (_named_gradient(name), process_set)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        name, process_set = ctx.arguments
        return (None, None, *[
            _my_rows(gradient, rows, None if name is None else f"{name}.{index}", process_set)
            for index, (gradient, rows) in enumerate(zip(gradients, ctx.rows))
        ])  # fmt: skip


def grouped_allgather(tensors, name=None, process_set=global_process_set):
    """Gathers several tensors as one unit, each as allgather does. Returns the list of results. Differentiable."""
    tensors = list(tensors)
    return list(_run(_GroupedAllgather, name, process_set, *tensors)) if tensors else []


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.arguments = (root_rank, _named_gradient(name), process_set)
        return ops.synchronize(ops.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx, gradient):
        root_rank, name, process_set = ctx.arguments
        handle = ops.allreduce_async(gradient.contiguous(), None, name, Average, 1.0, 1.0, process_set)
        average = ops.synchronize(handle)
        is_root = process_set.ranks[process_set.rank()] == root_rank
        return average if is_root else torch.zeros_like(average), None, None, None


def broadcast(tensor, root_rank, name=None, process_set=global_process_set):
    """The tensor of rank `root_rank` (of the world) on every rank of the set, as a new tensor. Differentiable.

    InvalidArgumentError, a ValueError, if the arguments cannot be used. HorovodInternalError if the operation fails,
    for example because ranks pass different shapes.
    """
    return _run(_Broadcast, tensor, root_rank, name, process_set)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        output, received = ops.synchronize(ops.alltoall_async(tensor, splits, name, process_set))
        ctx.arguments = (received.cpu(), tensor.shape[0], _named_gradient(name), process_set)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx, gradient, _):
        received, rows, name, process_set = ctx.arguments
        handle = ops.alltoall_async(gradient.contiguous(), received, name, process_set)
        back, _ = ops.synchronize(handle)
        if back.shape[0] < rows:  # rows that were not sent to any rank
            back = torch.cat([back, back.new_zeros(rows - back.shape[0], *back.shape[1:])])
        return back, None, None, None


def alltoall(tensor, splits=None, name=None, process_set=global_process_set):
    """Sends splits[r] rows (entries of the first dimension) to each rank r. Differentiable.

    Without `splits` all ranks get the same number of rows, and the result is the tensor of the received rows. With
    `splits` (integers, or an int32 tensor) the result is a pair: the received rows, and an int32 tensor with the number
    of rows from each rank.

    InvalidArgumentError, a ValueError, if the arguments cannot be used. HorovodInternalError if the operation fails,
    for example because ranks pass different shapes.
    """
    output, received = _run(_Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, process_set, prescale, postscale, *tensors):
        if len(tensors) == 1:
            handle = ops.reducescatter_async(tensors[0], name, op, process_set, prescale, postscale)
            outputs = [ops.synchronize(handle)]
        else:
            handle = ops.grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale)
            outputs = ops.synchronize(handle)
        # The derivative of the sum of all ranks' losses has the factor 1 for Sum, and 1 / size for Average.
        scale = prescale * postscale * (1 if op == Average else process_set.size())
        ctx.arguments = (_named_gradient(name), scale, process_set)
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        name, scale, process_set = ctx.arguments
        handles = [
            ops.allgather_async((gradient * scale).contiguous(), None if name is None else f"{name}.{i}", process_set)
            for i, gradient in enumerate(gradients)
        ]
        return (*[None] * 5, *[ops.synchronize(handle) for handle in handles])


def reducescatter(tensor, name=None, compression=Compression.none, op=Average, process_set=global_process_set,
                  prescale_factor=1.0, postscale_factor=1.0):  # fmt: skip
    """Reduces the tensors of all ranks and returns this rank's rows (entries of the first dimension). Differentiable.

    `op`: Average or Sum. If the rows do not divide evenly, the first ranks get one more.

    The gradient is that of Horovod: the gradients of all ranks joined, times the number of ranks for Sum. It is the
    derivative of the sum of all ranks' losses times the number of ranks.

    InvalidArgumentError, a ValueError, if the arguments cannot be used. HorovodInternalError if the operation fails,
    for example because ranks pass different shapes.
    """
    small, ctx = compression.compress(tensor)
    (result,) = _run(_Reducescatter, name, op, process_set, prescale_factor, postscale_factor, small)
    return compression.decompress(result, ctx)


def grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average, process_set=global_process_set,
                          prescale_factor=1.0, postscale_factor=1.0):  # fmt: skip
    """Reduces and scatters several tensors as one unit, each as reducescatter does. Returns the list of results.

    Differentiable, with the gradients of reducescatter.
    """
    small = [compression.compress(tensor) for tensor in tensors]
    if not small:
        return []
    results = _run(_Reducescatter, name, op, process_set, prescale_factor, postscale_factor, *[one for one, _ in small])
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small)]
