"""distributed_optimizer: an optax optimizer that reduces gradients over the ranks first."""

import itertools

import jax
import jax.numpy as jnp

from .. import core
from ..basics import Average, checked_op, global_process_set
from .compression import Compression
from .functions import allreduce
from .tracing import is_traced

_created = itertools.count()


def _count_again():
    """The optimizers of the next world are numbered from 0 on all ranks."""
    global _created
    _created = itertools.count()


core.on_shutdown(_count_again)


def distributed_optimizer(optimizer, name=None, compression=Compression.none, backward_passes_per_step=1, op=Average,
                          gradient_predivide_factor=1.0, process_set=global_process_set):  # fmt: skip
    """Wraps an optax optimizer: its update() reduces the gradients of all ranks in one unit and then runs the wrapped
    one, so that clipping in `optimizer` sees the reduced gradients.

    `name`: of the reductions, the same on all ranks; None: "optimizer." and the number of optimizers made so far.
    `compression` is applied before sending. `backward_passes_per_step`: gradients of so many calls are summed on this
    rank before they are reduced; the other calls return zero updates. `op`: Average, Sum or Adasum.
    `gradient_predivide_factor`: with Average, gradients are divided by it before the sum over ranks, and the average is
    multiplied by it, against overflow in 16-bit types.

    Returns an optax.GradientTransformationExtraArgs. ValueError for arguments that cannot be used.
    """
    import optax

    if checked_op(op) != Average and gradient_predivide_factor != 1.0:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
    name = name or f"optimizer.{next(_created)}"
    inner = optax.with_extra_args_support(optimizer)

    def reduced(gradients):
        return allreduce(gradients, name, op, 1.0 / gradient_predivide_factor, gradient_predivide_factor, compression,
                         process_set)  # fmt: skip

    def update(gradients, state, params=None, **extra):
        return inner.update(reduced(gradients), state, params, **extra)

    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, update)
    return _accumulating(inner, update, backward_passes_per_step)


def _accumulating(inner, update, passes):
    """The optimizer whose update sums gradients and calls `update` in every `passes`-th call."""
    import optax

    def init(params):
        return jnp.zeros((), jnp.int32), jax.tree_util.tree_map(jnp.zeros_like, params), inner.init(params)

    def step(sums, inner_state, params, extra):
        updates, inner_state = update(sums, inner_state, params, **extra)
        return updates, jax.tree_util.tree_map(jnp.zeros_like, sums), inner_state

    def keep(sums, inner_state, *_):
        return jax.tree_util.tree_map(jnp.zeros_like, sums), sums, inner_state

    def accumulate(gradients, state, params=None, **extra):
        count, sums, inner_state = state
        sums = jax.tree_util.tree_map(jnp.add, sums, gradients)
        is_last = count == passes - 1
        arguments = (sums, inner_state, params, extra)
        if is_traced(jax.tree_util.tree_leaves(arguments)):
            updates, sums, inner_state = jax.lax.cond(is_last, step, keep, *arguments)
        else:
            updates, sums, inner_state = (step if is_last else keep)(*arguments)
        return updates, ((count + 1) % passes, sums, inner_state)

    return optax.GradientTransformationExtraArgs(init, accumulate)
