"""Gradients of the ops: each is a collective too, with the names of the op and ".grad".

Conventions: those of allreduce and alltoall belong to the sum of all ranks' losses. Programs written for Horovod expect
others of three operations: those of allgather and broadcast are averages over ranks, and those of reducescatter are the
sum's derivative times the number of ranks.
"""

import tensorflow as tf

from ..basics import Average, Sum, native_op
from . import compiled
from .calls import fact, run_named
from .library import ops
from .naming import unique_name

_LINEAR = {native_op(Average), native_op(Sum)}


def _names(op, ending=".grad"):
    return [unique_name(name.decode() + ending) for name in op.get_attr("tensor_names")]


def _dense(op, gradients):
    """The gradients as tensors: zeros for results that nothing used."""
    return [
        tf.zeros_like(output) if gradient is None else tf.convert_to_tensor(gradient)
        for output, gradient in zip(op.outputs, gradients)
    ]


def _allreduce(tensors, names, process_set, op, prescale="1", postscale="1"):
    return run_named(ops.farandole_allreduce, tensors, names, process_set, reduce_op=op, prescale=prescale,
                     postscale=postscale)  # fmt: skip


@tf.RegisterGradient("FarandoleAllreduce")
def _allreduce_gradient(op, *gradients):
    reduction = op.get_attr("reduce_op")
    if reduction not in _LINEAR:
        raise NotImplementedError("gradients pass through op=Average and op=Sum only")
    reduced = _allreduce(_dense(op, gradients), _names(op), op.get_attr("process_set"), reduction,
                         op.get_attr("prescale"), op.get_attr("postscale"))  # fmt: skip
    return [*reduced, None]


@tf.RegisterGradient("FarandoleAllgather")
def _allgather_gradient(op, *gradients):
    process_set = op.get_attr("process_set")
    averages = _allreduce(_dense(op, gradients), _names(op), process_set, native_op(Average))
    if compiled.is_traced():  # all ranks have the same number of rows
        rank = tf.get_static_value(fact("rank_in_set", process_set))
        counts = [tensor.shape[0] for tensor in op.inputs[:-1]]
        return [*[average[rank * rows : (rank + 1) * rows] for average, rows in zip(averages, counts)], None]
    rows = [tf.shape(tensor)[:1] for tensor in op.inputs[:-1]]
    counts = run_named(ops.farandole_allgather, rows, _names(op, ".rows"), process_set)
    rank = fact("rank_in_set", process_set)
    mine = []
    for average, counted, own in zip(averages, counts, rows):
        start = tf.reduce_sum(counted[:rank])
        mine.append(average[start : start + own[0]])
    return [*mine, None]


@tf.RegisterGradient("FarandoleBroadcast")
def _broadcast_gradient(op, *gradients):
    averages = _allreduce(_dense(op, gradients), _names(op), op.get_attr("process_set"), native_op(Average))
    is_root = tf.equal(fact("rank"), op.get_attr("root_rank"))
    return [*[tf.where(is_root, average, tf.zeros_like(average)) for average in averages], None]


@tf.RegisterGradient("FarandoleAlltoall")
def _alltoall_gradient(op, gradient, _):
    (gradient,) = _dense(op, [gradient])
    (back,), _ = run_named(ops.farandole_alltoall, [gradient], _names(op), op.get_attr("process_set"), op.outputs[1])
    missing = tf.shape(op.inputs[0])[0] - tf.shape(back)[0]  # rows that were not sent to any rank
    padding = tf.concat([[[0, missing]], tf.zeros([tf.rank(back) - 1, 2], tf.int32)], 0)
    return [tf.pad(back, padding), None, None]


@tf.RegisterGradient("FarandoleReducescatter")
def _reducescatter_gradient(op, *gradients):
    process_set = op.get_attr("process_set")
    # The derivative of the sum of all ranks' losses has the factor 1 for Sum, and 1 / size for Average.
    factor = float(op.get_attr("prescale")) * float(op.get_attr("postscale"))
    gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in _dense(op, gradients)]
    if op.get_attr("reduce_op") == native_op(Sum):
        size = fact("size", process_set)
        gradients = [gradient * tf.cast(size, gradient.dtype) for gradient in gradients]
    # The rows may not divide evenly, so that XLA must be given the sum.
    total = {"total_rows": [one.shape[0] for one in op.inputs[:-1]]} if compiled.is_traced() else {}
    gathered = run_named(ops.farandole_allgather, gradients, _names(op), process_set, **total)
    return [*gathered, None]


_FUNCTIONS = {
    "farandole_allreduce": _allreduce_gradient,
    "farandole_allgather": _allgather_gradient,
    "farandole_broadcast": _broadcast_gradient,
    "farandole_alltoall": _alltoall_gradient,
    "farandole_reducescatter": _reducescatter_gradient,
}


def of(operation):
    """The gradient of the op with that name: a function of the op, or of an object like it, and of its gradients."""
    return _FUNCTIONS[operation]
