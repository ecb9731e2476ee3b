"""Gradients of Keras on TensorFlow: tensors and IndexedSlices, reduced by one operation of the graph."""

import tensorflow as tf

from .. import core
from ..basics import native_op


def _reduced_arrays(name, op, prescale, postscale, process_set):
    def reduced(*arrays):
        return core.grouped_allreduce(arrays, op, name=name, group=process_set.group("Allreduce"),
                                      prescale=prescale, postscale=postscale)  # fmt: skip

    return reduced


def reduce(gradients, name, op, prescale, postscale, compression, process_set):
    """Returns the reductions of gradients over the ranks of the set, by one grouped allreduce."""
    packed = [compression.compress(tf.convert_to_tensor(gradient)) for gradient in gradients]
    sent = [tensor for tensor, _ in packed]
    function = _reduced_arrays(name, native_op(op), prescale, postscale, process_set)
    outputs = tf.numpy_function(function, sent, [tensor.dtype for tensor in sent])
    for tensor, output in zip(sent, outputs):
        output.set_shape(tensor.shape)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(outputs, packed)]


def fill_missing(gradients, variables, name, process_set):
    """Returns the gradients: all ranks trace the same graph, so they have gradients of the same variables."""
    return gradients


def scaled(gradient, factor):
    """The gradient times a number."""
    return tf.math.scalar_mul(factor, gradient)


def only_when(condition, reduce, gradients):
    """reduce(gradients): TensorFlow executes this in update steps only."""
    return reduce(gradients)


def refuse_strategy():
    """ValueError inside a strategy of tf.distribute."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "tf.distribute and farandole would both average the gradients: leave tf.distribute's strategy, and start "
            "one process for each device with `farandole run`"
        )


def check_model(model):
    """ValueError if the training step of `model` is compiled by XLA."""
    if model.jit_compile:
        raise ValueError(
            "jit_compile=True: farandole's operations cannot be compiled by XLA; give compile(jit_compile=False)"
        )


def failure_of(error):
    return None


def attach_state(model):
    """Variables always have the current values."""


def abandon_step(model):
    """An interrupted step leaves nothing behind."""
