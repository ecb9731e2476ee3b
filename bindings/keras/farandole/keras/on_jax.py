"""Gradients of Keras on JAX: arrays, reduced by one call of the compiled step."""

import jax
import jax.numpy as jnp

from .. import core
from ..basics import native_op


def reduce(gradients, name, op, prescale, postscale, compression, process_set):
    """Returns the reductions of gradients over the ranks of the set, by one grouped allreduce."""
    packed = [compression.compress(jnp.asarray(gradient)) for gradient in gradients]
    sent = [array for array, _ in packed]
    native = native_op(op)

    def reduced(arrays):
        import numpy as np

        return core.grouped_allreduce([np.asarray(one) for one in arrays], native, name=name,
                                      group=process_set.group("Allreduce"), prescale=prescale, postscale=postscale)

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in sent]
    outputs = jax.experimental.io_callback(reduced, shapes, sent, ordered=False)
    return [compression.decompress(array, context) for array, (_, context) in zip(outputs, packed)]


def fill_missing(gradients, variables, name, process_set):
    """Returns the gradients: JAX has a gradient of every variable."""
    return gradients


def scaled(gradient, factor):
    """The gradient times a number."""
    return gradient * factor


def only_when(condition, reduce, gradients):
    """reduce(gradients) where `condition` holds, else the gradients. JAX executes this in every step."""
    return jax.lax.cond(condition, reduce, list, gradients)


def refuse_strategy():
    """There is no other distribution inside a process to refuse."""


def check_model(model):
    """JAX's training step needs no check."""


def attach_state(model):
    """Gives the variables the values that fit keeps elsewhere during an epoch."""
    model.jax_state_sync()


def abandon_step(model):
    """Forgets the values of an interrupted epoch: the step that failed has taken their memory over."""
    model._jax_state = None


def failure_of(error):
    """The farandole.Error that made a compiled step fail, or None."""
    return None
