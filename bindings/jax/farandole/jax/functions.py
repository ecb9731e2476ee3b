"""Collectives on arrays and pytrees, in compiled functions and outside of them, with their gradients.

Outside compiled functions they read and write the memory of arrays directly.
"""

import contextlib
import dataclasses
import functools

import jax
import numpy

from .. import core, errors
from ..basics import Adasum, Average, Sum, check_adasum, checked_op, global_process_set, native_op
from ..codes import Kind
from . import arrays, compiled
from .compression import Compression
from .tracing import is_traced


@contextlib.contextmanager
def _horovod_errors():
    """Raises failures with the classes that programs written for Horovod expect."""
    try:
        yield
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def _leaves_of(tree):
    """(arrays, structure) of a pytree. Numbers become arrays."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return [one if isinstance(one, (jax.Array, numpy.ndarray)) else jax.numpy.asarray(one) for one in leaves], structure


def _with_token(result, token, given):
    return result if given is None else (result, token)


# ---- Allreduce ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Reduction:
    """The arguments of an allreduce except for its arrays."""

    name: object
    op: int
    prescale: float
    postscale: float
    process_set: object

    def gradient(self):
        """The reduction of the gradients."""
        if self.op not in (Average, Sum):
            raise NotImplementedError("gradients pass through op=Average and op=Sum only")
        return dataclasses.replace(self, name=None if self.name is None else f"{self.name}.grad")


def _allreduce_now(call, leaves, token):
    group = call.process_set.group("Allreduce")
    views = [arrays.view(one) for one in leaves]
    outs = [arrays.fresh(one) for one in views]
    options = dict(name=call.name, group=group, prescale=call.prescale, postscale=call.postscale)
    with _horovod_errors():
        if len(views) == 1:
            core.allreduce(views[0], native_op(call.op), out=outs[0], **options)
        else:
            core.grouped_allreduce(views, native_op(call.op), out=outs, **options)
    return [arrays.to_jax(out, one) for out, one in zip(outs, leaves)], token


def _allreduce(call, leaves, token):
    if not is_traced([*leaves, token]):
        return _allreduce_now(call, leaves, token)
    group = call.process_set.group("Allreduce")
    operation = "allreduce" if len(leaves) == 1 else "grouped_allreduce"
    shapes = [one.shape for one in leaves]
    return compiled.call(Kind.ALLREDUCE, group, operation, call.name, leaves, shapes, token, op=native_op(call.op),
                         prescale=call.prescale, postscale=call.postscale)  # fmt: skip


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable_allreduce(call, leaves, token):
    return _allreduce(call, leaves, token)


def _allreduce_forward(call, leaves, token):
    return _allreduce(call, leaves, token), None


def _allreduce_backward(call, _, gradients):
    of_leaves, of_token = gradients
    floats = [index for index, one in enumerate(of_leaves) if one.dtype != jax.dtypes.float0]
    of_leaves = list(of_leaves)
    if floats:
        reduced, _ = _differentiable_allreduce(call.gradient(), [of_leaves[index] for index in floats], None)
        for index, one in zip(floats, reduced):
            of_leaves[index] = one
    return of_leaves, of_token


_differentiable_allreduce.defvjp(_allreduce_forward, _allreduce_backward)


def allreduce(tensor, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0, compression=Compression.none,
              process_set=global_process_set, token=None):  # fmt: skip
    """Computes postscale_factor * op over ranks of (prescale_factor * tensor) for an array, or each array of a pytree.

    The result has the structure, shapes and types of `tensor`; every rank of the set passes the same ones. The arrays
    of a pytree are one unit: no reduction starts before all arrays are ready on all ranks, and they travel together.
    `op`: Average (the default), Sum, Min, Max, Product or Adasum. Differentiable for Average and Sum: the gradient is
    reduced in the same way. `compression` is applied before sending.

    `name` matches the call with those of other ranks. None: the number of unnamed calls so far, which all ranks must
    make, or trace, in the same order. Two calls in one compiled function need different names.

    `token`: in compiled functions, an array of compiled.make_token(); the call runs after the one that returned it.
    The result is then the pair (reduced, token).

    InvalidArgumentError, a ValueError, for arguments that cannot be used. Failures are HorovodInternalError outside
    compiled functions, and jax.errors.JaxRuntimeError with the same text in them: see error_of.
    """
    op = checked_op(op)
    if op == Adasum:
        check_adasum(process_set)
    leaves, structure = _leaves_of(tensor)
    if not leaves:
        return _with_token(tensor, token, token)
    small, contexts = zip(*map(compression.compress, leaves))
    call = _Reduction(name, op, float(prescale_factor), float(postscale_factor), process_set)
    # Differentiation needs tracers. Without any, the collective runs directly, at a fraction of the cost.
    run = _differentiable_allreduce if is_traced([*small, token]) else _allreduce
    reduced, after = run(call, list(small), token)
    result = structure.unflatten(map(compression.decompress, reduced, contexts))
    return _with_token(result, after, token)
