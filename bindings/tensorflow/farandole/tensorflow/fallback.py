"""The ops for TensorFlow before 2.13, whose C API lacks what libfarandole_tensorflow.so needs: by tf.numpy_function.

Each function has the arguments and results of the native op of the same name. An op holds one of TensorFlow's threads
while it waits, so that a graph with many independent collectives may stop; gradients in groups are few. Failures are
UnknownError or InvalidArgumentError, because TensorFlow keeps no other class.
"""

import numpy as np
import tensorflow as tf

from .. import _native, basics, core, errors
from ..codes import DTYPE_NAMES
from ..operation import Operation

_DTYPES = {name: number for number, name in DTYPE_NAMES.items()}


def _group_of(process_set):
    registered = basics._process_sets.get(process_set)
    if registered is None:
        raise ValueError(f"process set {process_set} does not exist, or has not been registered")
    return registered.group("farandole")


def _submit(kind, names, process_set, arrays, root=0, splits=None, in_place=True, **reduction):
    """Runs operations on arrays as one group, and returns (array, received splits) of each."""
    arrays = [np.array(one, order="C", copy=True) if one.ndim else np.array(one) for one in arrays]
    operations = [
        Operation(int(kind), name, one.ctypes.data, _DTYPES[one.dtype.name], one.shape,
                  one.ctypes.data if in_place else 0, one.size, root=root, splits=splits, **reduction)
        for name, one in zip(names, arrays)
    ]  # fmt: skip
    try:
        handle = _native.submit(_group_of(process_set).member(), operations, arrays)
        handle.wait()
    except errors.Error as error:
        _note_loss(error)
        raise
    if in_place:
        return [(one, None) for one in arrays]
    results = []
    for index, one in enumerate(arrays):
        memory, shape, received = handle.output(index)
        whole = np.frombuffer(memory, np.uint8).view(one.dtype) if memory is not None else np.empty(0, one.dtype)
        results.append((whole.reshape(shape), received))
    return results


_last_loss = None


def _note_loss(error):
    global _last_loss
    if not isinstance(error, (ValueError, errors.MismatchError, errors.UnsupportedError, errors.NotInitializedError)):
        _last_loss = error


def last_loss():
    """The last error of an op that ended its group; None if there was none."""
    return _last_loss


class _Op:
    """What the functions of gradients.py read of an op."""

    def __init__(self, inputs, outputs, attributes):
        self.inputs, self.outputs, self._attributes = inputs, outputs, attributes

    def get_attr(self, name):
        return self._attributes[name]


def _differentiable(gradient, tensors, attributes, run, more_inputs=()):
    """The outputs of run(*tensors), with a gradient function of gradients.py."""

    @tf.custom_gradient
    def call(*inputs):
        outputs = run(*inputs)

        def backward(*upstream):
            from . import gradients

            made = getattr(gradients, gradient)(_Op([*inputs, *more_inputs, None], outputs, attributes), *upstream)
            return made[: len(inputs)]

        return outputs, backward

    return call(*tensors)


def _attributes_of(tensor_names, **others):
    return {"tensor_names": [name.encode() for name in tensor_names], **others}


def _collective(kind, gradient, tensors, token, attributes, has_other_rows=False, **arguments):
    names = [name.decode() for name in attributes["tensor_names"]]

    def run(*inputs):
        def body(_, *arrays):
            return [result for result, _ in _submit(kind, names, attributes["process_set"], arrays,
                                                    in_place=not has_other_rows, **arguments)]  # fmt: skip

        outputs = tf.numpy_function(body, [token, *inputs], [one.dtype for one in inputs], stateful=False)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]  # one output, in eager mode
        for one, source in zip(outputs, inputs):
            shape = source.shape
            one.set_shape([None, *shape[1:]] if has_other_rows and shape.rank else None if has_other_rows else shape)
        return outputs

    return _differentiable(gradient, tensors, attributes, run)


def _reduction(reduce_op, prescale, postscale):
    return {"op": reduce_op, "prescale": float(prescale), "postscale": float(postscale)}


def farandole_allreduce(tensors, token, tensor_names, reduce_op, process_set=0, prescale="1", postscale="1"):
    attributes = _attributes_of(tensor_names, process_set=process_set, reduce_op=reduce_op, prescale=prescale,
                                postscale=postscale)  # fmt: skip
    return _collective(core.Kind.ALLREDUCE, "_allreduce_gradient", tensors, token, attributes,
                       **_reduction(reduce_op, prescale, postscale))  # fmt: skip


def farandole_allgather(tensors, token, tensor_names, process_set=0):
    attributes = _attributes_of(tensor_names, process_set=process_set)
    return _collective(core.Kind.ALLGATHER, "_allgather_gradient", tensors, token, attributes, True)


def farandole_broadcast(tensors, token, tensor_names, root_rank, process_set=0):
    attributes = _attributes_of(tensor_names, process_set=process_set, root_rank=root_rank)
    root = basics._process_sets[process_set].root(root_rank, "broadcast") if process_set in basics._process_sets else 0
    return _collective(core.Kind.BROADCAST, "_broadcast_gradient", tensors, token, attributes, root=root)


def farandole_reducescatter(tensors, token, tensor_names, reduce_op, process_set=0, prescale="1", postscale="1"):
    attributes = _attributes_of(tensor_names, process_set=process_set, reduce_op=reduce_op, prescale=prescale,
                                postscale=postscale)  # fmt: skip
    return _collective(core.Kind.REDUCE_SCATTER, "_reducescatter_gradient", tensors, token, attributes, True,
                       **_reduction(reduce_op, prescale, postscale))  # fmt: skip


def farandole_alltoall(tensors, splits, token, tensor_names, process_set=0):
    attributes = _attributes_of(tensor_names, process_set=process_set)

    def run(tensor):
        def body(_, array, rows):
            ((result, received),) = _submit(core.Kind.ALLTOALL, tensor_names, process_set, [array],
                                            splits=list(map(int, rows)) or None, in_place=False)  # fmt: skip
            return [result, np.array(received, np.int32)]

        rows, received = tf.numpy_function(body, [token, tensor, splits], [tensor.dtype, tf.int32], stateful=False)
        rows.set_shape([None, *tensor.shape[1:]] if tensor.shape.rank else None)
        received.set_shape([None])
        return rows, received

    rows, received = _differentiable("_alltoall_gradient", tensors, attributes, run, [splits])
    return [rows], received


def farandole_barrier(tensor_names, process_set=0):
    def body():
        core.barrier(group=_group_of(process_set))
        return np.int32(0)

    return tf.numpy_function(body, [], tf.int32)


def farandole_join():
    def body():
        return np.int32(core.join(_group_of(0)))

    last = tf.numpy_function(body, [], tf.int32)
    last.set_shape([])
    return last


_FACTS = {
    "size": lambda process_set: process_set.size(),
    "rank": lambda process_set: core.rank(),
    "rank_in_set": lambda process_set: process_set.rank(),
    "local_size": lambda process_set: core.local_size(),
    "local_rank": lambda process_set: core.local_rank(),
    "included": lambda process_set: process_set.included(),
}


def farandole_fact(fact, process_set=0):
    def body():
        registered = basics._process_sets[process_set]
        if registered._group is None:
            raise errors.NotInitializedError("farandole has not been initialized; use hvd.init().")
        return np.int32(_FACTS[fact](registered))

    value = tf.numpy_function(body, [], tf.int32)
    value.set_shape([])
    return value


def farandole_token():
    # Stateful: TensorFlow computes stateless ops of constants once, and tf.data runs functions without stateful ops at
    # the same time, whose operations have the same names.
    return tf.numpy_function(lambda: np.int32(0), [], tf.int32)
