"""Gradients of Keras on JAX: arrays, reduced by one call of the compiled step."""

import jax

from .. import jax as hvd


def reduce(reduction, gradients, name):
    """Returns the reductions of gradients over the ranks of the set, by one grouped allreduce."""
    return hvd.allreduce(list(gradients), name, reduction.op, reduction.prescale, reduction.postscale,
                         reduction.compression, reduction.process_set)  # fmt: skip


def fill_missing(gradients, variables, name, process_set):
    """Returns the gradients: JAX has a gradient of every variable."""
    return gradients


def scaled(gradient, factor):
    """The gradient times a number."""
    return gradient if factor == 1 else gradient * factor


def only_when(condition, reduce, gradients):
    """reduce(gradients) where `condition` holds, else the gradients. JAX executes this in every step."""
    return jax.lax.cond(condition, reduce, list, gradients)


def refuse_strategy():
    """keras.distribution is the only other distribution on JAX."""


def check_model(model):
    """JAX's training step needs no check."""


def attach_state(model):
    """Gives the variables the values that fit keeps elsewhere during an epoch."""
    model.jax_state_sync()


def abandon_step(model):
    """Forgets the values of an interrupted epoch: the step that failed has taken their memory over."""
    model._jax_state = None


def copies_of(arrays):
    """The values in memory of their own. Raises the error of a step that computes them and has failed meanwhile."""
    return jax.block_until_ready([jax.numpy.copy(array) for array in arrays])


def failure_of(error):
    """The farandole.Error that made a compiled step fail, or None."""
    return hvd.error_of(error)
