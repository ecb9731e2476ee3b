"""Gradients of Keras on TensorFlow: tensors and IndexedSlices, reduced by ops of the graph."""

import logging

import tensorflow as tf

from .. import tensorflow as hvd
from ..tensorflow import compiled
from ..tensorflow.elastic import loss_of
from ..tensorflow.reduction import refuse_strategy  # noqa: F401 (a part of this module's interface, see backend.py)

_log = logging.getLogger("farandole.keras")


def reduce(reduction, gradients, name):
    """Returns the reductions of gradients over the ranks of the set, by one grouped allreduce.

    Gradients with few rows, which embeddings have, are gathered by another group, unless the caller wants them dense.
    """
    if reduction.sparse_as_dense:
        gradients = [tf.convert_to_tensor(one) for one in gradients]
    sparse = [index for index, one in enumerate(gradients) if isinstance(one, tf.IndexedSlices)]
    dense = [index for index in range(len(gradients)) if index not in sparse]
    options = dict(op=reduction.op, process_set=reduction.process_set, name=name, ignore_name_scope=True)
    results = list(gradients)
    for index, one in zip(sparse, hvd.grouped_allreduce([gradients[index] for index in sparse], **options)):
        results[index] = scaled(one, reduction.passes_factor)  # rows cannot be scaled while they travel
    reduced = hvd.grouped_allreduce([gradients[index] for index in dense], compression=reduction.compression,
                                    prescale_factor=reduction.prescale, postscale_factor=reduction.postscale,
                                    **options)  # fmt: skip
    for index, one in zip(dense, reduced):
        results[index] = one
    return results


def fill_missing(gradients, variables, name, process_set):
    """Returns the gradients: all ranks trace the same graph, so they have gradients of the same variables."""
    return gradients


def scaled(gradient, factor):
    """The gradient times a number."""
    return gradient if factor == 1 else tf.math.scalar_mul(factor, gradient)


def only_when(condition, reduce, gradients):
    """reduce(gradients): TensorFlow executes this in update steps only."""
    return reduce(gradients)


def check_model(model):
    """Makes fit run the training step of `model` without XLA, where XLA cannot call farandole.

    ValueError, with the reason, if the program asked for XLA. On machines with accelerators jit_compile="auto" means
    True too.
    """
    if not model.jit_compile or model.run_eagerly:
        return
    reason = compiled.refusal()
    if reason is None:
        return
    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        raise ValueError(f"jit_compile=True: {reason}")
    _log.warning("jit_compile: %s; the training step runs without it", reason)
    model.jit_compile = False
    model.make_train_function(force=True)


def attach_state(model):
    """Variables always have the current values."""


def abandon_step(model):
    """An interrupted step leaves nothing behind."""


def copies_of(tensors):
    """The values in memory of their own."""
    return [tf.identity(tensor) for tensor in tensors]


def failure_of(error):
    """The farandole.Error that made an op fail, or None."""
    return loss_of(error) if isinstance(error, tf.errors.OpError) else None
