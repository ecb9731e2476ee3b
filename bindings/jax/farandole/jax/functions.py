"""Collectives on arrays and pytrees, in compiled functions and outside of them, with their gradients.

Conventions of the gradients are those of farandole.torch: gradients of allreduce and alltoall belong to the sum of all
ranks' losses; those of allgather and broadcast are averages over ranks, and those of reducescatter are the sum's
derivative times the number of ranks, as programs written for Horovod expect.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy

from .. import core, errors
from ..basics import Adasum, Average, Max, Sum, check_adasum, checked_op, global_process_set, native_op
from ..codes import Kind, Op
from . import compiled, direct
from .compression import Compression
from .tracing import is_traced


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of a collective except for its arrays."""

    kind: Kind
    operation: str
    process_set: object
    name: object = None
    op: int = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0  # in the process set
    splits: object = None  # alltoall: the rows for each rank
    received: object = None  # alltoall: the rows from each rank
    total_rows: object = None  # allgather: the rows of all ranks together
    keep: bool = False  # a compiled function runs it even if its result is not used

    def for_gradient(self, suffix="", **changes):
        """This call, with changes and the name of its gradient's call."""
        name = None if self.name is None else f"{self.name}.grad{suffix}"
        return dataclasses.replace(self, name=name, **changes)

    def group(self):
        return self.process_set.group(self.operation.capitalize())


def _rows_of_rank(rows, size, rank):
    """The rows of a rank when `rows` rows are divided: the first ranks get one more where they do not divide evenly."""
    return rows // size + (rank < rows % size)


def _compiled_shape(call, group, shape):
    """The shape of a result, which a compiled function must know before it runs."""
    if call.kind == Kind.ALLGATHER:
        return (shape[0] * group.size if call.total_rows is None else call.total_rows, *shape[1:])
    if call.kind == Kind.REDUCE_SCATTER:
        return (_rows_of_rank(shape[0], group.size, group.rank), *shape[1:])
    if call.kind == Kind.ALLTOALL and call.received is not None:
        return (sum(call.received), *shape[1:])
    return shape


def _run(call, leaves, token):
    """Runs or traces the call. Returns the results and the token."""
    group = call.group()
    operation = call.operation if len(leaves) == 1 else f"grouped_{call.operation}"
    options = dict(op=native_op(call.op), root=call.root, prescale=call.prescale, postscale=call.postscale,
                   splits=call.splits)  # fmt: skip
    if not is_traced([*leaves, token]):
        return direct.call(call.kind, group, operation, call.name, leaves, **options)[0], token
    shapes = [_compiled_shape(call, group, leaf.shape) for leaf in leaves]
    return compiled.call(call.kind, call.process_set, operation, call.name, leaves, shapes, token, keep=call.keep,
                         **options)  # fmt: skip


# ---- Gradients ------------------------------------------------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call, leaves, token):
    return _run(call, leaves, token)


def _forward(call, leaves, token):
    return _run(call, leaves, token), [leaf.shape for leaf in leaves]


def _backward(call, shapes, cotangents):
    of_leaves, of_token = cotangents
    gradients = list(of_leaves)
    floats = [index for index, one in enumerate(gradients) if one.dtype != jax.dtypes.float0]
    if floats:
        of_floats = _GRADIENTS[call.kind](call, [gradients[i] for i in floats], [shapes[i] for i in floats])
        for index, gradient in zip(floats, of_floats):
            gradients[index] = gradient
    # Integers have no gradient, in the shape of the input.
    return [one if index in floats else numpy.zeros(shapes[index], jax.dtypes.float0)
            for index, one in enumerate(gradients)], of_token  # fmt: skip


def _of_allreduce(call, gradients, _):
    if call.op not in (Average, Sum):
        raise NotImplementedError("gradients pass through op=Average and op=Sum only")
    return _differentiable(call.for_gradient(), gradients, None)[0]


def _average(call, gradients, keep=False):
    """The average over ranks of the gradients."""
    call = call.for_gradient(kind=Kind.ALLREDUCE, operation="allreduce", op=Average, keep=keep)
    return _differentiable(call, gradients, None)[0]


def _of_broadcast(call, gradients, _):
    # Ranks other than the root do not use the averages, and XLA would drop a call on these ranks alone.
    averages = _average(call, gradients, keep=True)
    return averages if call.group().rank == call.root else [jnp.zeros_like(one) for one in averages]


def _of_allgather(call, gradients, shapes):
    averages = _average(call, gradients)
    group = call.group()
    if not is_traced(gradients):  # ranks may have other numbers of rows
        (rows,), _ = _run(call.for_gradient(".rows"), [jnp.array([[shape[0] for shape in shapes]])], None)
        starts = [int(rows[: group.rank, index].sum()) for index in range(len(shapes))]
    elif any(one.shape[0] != group.size * shape[0] for one, shape in zip(gradients, shapes)):
        raise NotImplementedError("gradients pass through a compiled allgather only if all ranks have equal rows")
    else:
        starts = [group.rank * shape[0] for shape in shapes]
    return [one[start : start + shape[0]] for one, start, shape in zip(averages, starts, shapes)]


def _of_reducescatter(call, gradients, shapes):
    # The derivative of the sum of all ranks' losses has the factor 1 for Sum, and 1 / size for Average.
    scale = call.prescale * call.postscale * (1 if call.op == Average else call.group().size)
    results = []
    for index, (gradient, shape) in enumerate(zip(gradients, shapes)):
        gather = call.for_gradient(f".{index}", kind=Kind.ALLGATHER, operation="allgather", op=Sum, prescale=1.0,
                                   postscale=1.0, total_rows=shape[0])  # fmt: skip
        results += _differentiable(gather, [gradient * scale], None)[0]
    return results


def _of_alltoall(call, gradients, shapes):
    back = call.for_gradient(splits=call.received, received=call.splits)
    (returned,), _ = _differentiable(back, gradients, None)
    unsent = shapes[0][0] - returned.shape[0]
    return [jnp.concatenate([returned, jnp.zeros((unsent, *shapes[0][1:]), returned.dtype)]) if unsent else returned]


_GRADIENTS = {
    Kind.ALLREDUCE: _of_allreduce,
    Kind.ALLGATHER: _of_allgather,
    Kind.BROADCAST: _of_broadcast,
    Kind.ALLTOALL: _of_alltoall,
    Kind.REDUCE_SCATTER: _of_reducescatter,
}

_differentiable.defvjp(_forward, _backward)


# ---- The functions --------------------------------------------------------------------------------------------------


def _leaves_of(tree):
    """(arrays, structure) of a pytree. Numbers become arrays."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return [one if isinstance(one, (jax.Array, numpy.ndarray)) else jnp.asarray(one) for one in leaves], structure


def _collective(call, tree, token, compression=Compression.none):
    """The call on all arrays of a pytree. The result has its structure."""
    leaves, structure = _leaves_of(tree)
    call.group()  # raises if this rank cannot take part
    if not leaves:
        return tree if token is None else (tree, token)
    if call.kind not in (Kind.ALLREDUCE, Kind.BROADCAST) and any(leaf.ndim == 0 for leaf in leaves):
        raise errors.InvalidArgumentError(
            f"{call.operation}: an array without dimensions has no rows; use array.reshape(1)"
        )
    small, contexts = zip(*map(compression.compress, leaves))
    # Differentiation needs tracers. Without any, the collective runs directly, at a fraction of the cost.
    run = _differentiable if is_traced([*small, token]) else _run
    made, after = run(call, list(small), token)
    result = structure.unflatten(map(compression.decompress, made, contexts))
    return result if token is None else (result, after)


def allreduce(tensor, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, compression=Compression.none,
              process_set=global_process_set, token=None):  # fmt: skip
    """Computes postscale_factor * op over ranks of (prescale_factor * tensor) for an array, or each array of a pytree.

    The result has the structure, shapes and types of `tensor`; every rank of the set passes the same ones. The arrays
    of a pytree are one unit: no reduction starts before all arrays are ready on all ranks, and they travel together.
    `op`: Average (the default), Sum, Min, Max, Product or Adasum. Differentiable for Average and Sum: the gradient is
    reduced in the same way. `compression` is applied before sending.

    `name` matches the call with those of other ranks. None: the line of the program and the number of calls there, so
    that all ranks must make, or trace, unnamed calls in the same order. Two calls in one compiled function need
    different names.

    `token`: in compiled functions, an array of make_token() or of another call. The call runs after the one that
    returned it, and the result is the pair (reduced, token).

    InvalidArgumentError, a ValueError, for arguments that cannot be used. Failures are HorovodInternalError outside
    compiled functions. In them, JAX raises jax.errors.JaxRuntimeError or ValueError with the same text: see error_of.
    """
    op = checked_op(op)
    if op == Adasum:
        check_adasum(process_set)
    call = Call(Kind.ALLREDUCE, "allreduce", process_set, name, op, float(prescale_factor), float(postscale_factor))
    return _collective(call, tensor, token, compression)


def allgather(tensor, name=None, process_set=global_process_set, token=None, total_rows=None):
    """The arrays of all ranks, joined along their first dimension; for each array of a pytree.

    Outside compiled functions the first dimension may differ between ranks. A compiled function knows the shape of its
    results before it runs: there all ranks have the same number of rows, or `total_rows` is their sum.

    The gradient is this rank's part of the average over ranks. See allreduce for `name`, `token` and errors.
    """
    total_rows = None if total_rows is None else int(total_rows)
    return _collective(Call(Kind.ALLGATHER, "allgather", process_set, name, total_rows=total_rows), tensor, token)


def broadcast(tensor, root_rank, name=None, process_set=global_process_set, token=None):
    """The array of rank `root_rank` (of the world) on every rank of the set; for each array of a pytree.

    Every rank passes arrays of the same shapes and types. The gradient is the average over ranks on the root, and zero
    on others. See allreduce for `name`, `token` and errors.
    """
    root = process_set.root(root_rank, "broadcast")
    return _collective(Call(Kind.BROADCAST, "broadcast", process_set, name, root=root), tensor, token)


def reducescatter(tensor, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0,
                  compression=Compression.none, process_set=global_process_set, token=None):  # fmt: skip
    """Reduces the arrays of all ranks and returns this rank's rows (entries of the first dimension), for each array of
    a pytree.

    `op`: Average or Sum. If the rows do not divide evenly, the first ranks get one more. The gradient is that of
    Horovod: the gradients of all ranks joined, times the number of ranks for Sum. See allreduce for the rest.
    """
    if checked_op(op) not in (Average, Sum):
        raise errors.as_horovod(errors.UnsupportedError("Reducescatter currently only supports AVERAGE and SUM."))
    call = Call(Kind.REDUCE_SCATTER, "reducescatter", process_set, name, int(op), float(prescale_factor),
                float(postscale_factor))  # fmt: skip
    return _collective(call, tensor, token, compression)


def _checked_splits(splits, argument, size):
    splits = tuple(int(rows) for rows in numpy.asarray(splits))
    if len(splits) != size or min(splits) < 0:
        raise errors.InvalidArgumentError(
            f"alltoall: {argument}={list(splits)} must have one number of rows, at least 0, for each of {size} ranks"
        )
    return splits


def alltoall(tensor, splits=None, name=None, process_set=global_process_set, token=None, received_splits=None):
    """Sends splits[r] rows (entries of the first dimension) of an array to each rank r, and returns the received rows.

    Without `splits` all ranks get the same number of rows. With `splits`, the result outside compiled functions is the
    pair of the received rows and an int32 array of the number of rows from each rank. A compiled function knows the
    shape of its results before it runs: there `received_splits` gives the rows from each rank, and the result is the
    received rows. Differentiable. See allreduce for `name`, `token` and errors.
    """
    group = process_set.group("Alltoall")
    (leaf,), _ = _leaves_of(tensor)
    traced = is_traced([leaf, token])
    if splits is None:
        if leaf.ndim > 0 and leaf.shape[0] % group.size:
            raise errors.InvalidArgumentError(
                f"splits not provided, but first dimension of tensor ({leaf.shape[0]}) is not divisible by the number "
                f"of workers ({group.size})."
            )
        return _collective(Call(Kind.ALLTOALL, "alltoall", process_set, name), leaf, token)
    splits = _checked_splits(splits, "splits", group.size)
    if leaf.ndim > 0 and sum(splits) > leaf.shape[0]:
        raise errors.InvalidArgumentError(
            f"Sum of splits entries ({sum(splits)}) is greater than the first dimension of tensor ({leaf.shape[0]})."
        )
    if received_splits is None:
        if traced:
            raise errors.InvalidArgumentError(
                "alltoall: a compiled function with splits needs received_splits, the rows from each rank"
            )
        rows, received = direct.call(Kind.ALLTOALL, group, "alltoall", name, [leaf], op=int(Op.SUM), splits=splits)
        return rows[0], jnp.array(received, jnp.int32)
    received = _checked_splits(received_splits, "received_splits", group.size)
    return _collective(
        Call(Kind.ALLTOALL, "alltoall", process_set, name, splits=splits, received=received), leaf, token
    )


def barrier(process_set=global_process_set, token=None, name=None):
    """Blocks until all ranks of the set have called it.

    In a compiled function it needs a token, and returns one: calls that take it run after the barrier.
    """
    group = process_set.group("Barrier")
    if is_traced([token]):
        if token is None:
            raise errors.InvalidArgumentError(
                "barrier: a compiled function needs token=make_token(), and later calls the token that it returns"
            )
        call = Call(Kind.ALLREDUCE, "barrier", process_set, name, op=Max)
        return _differentiable(call, [token], None)[0][0]
    with direct.horovod_errors():
        core.barrier(name=name, group=group)
    return token


def join(device=-1):
    """Declares that this rank has no more data, and blocks until all ranks have joined.

    Meanwhile this rank contributes zeros to the allreduces of the others. Returns the rank that joined last. `device`
    is ignored. Not in compiled functions.
    """
    if is_traced([]):
        raise errors.InvalidArgumentError("join: call it outside of compiled functions")
    with direct.horovod_errors():
        return core.join(global_process_set.group("Join"))
