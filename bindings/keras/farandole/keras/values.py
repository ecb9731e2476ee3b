"""Collectives on numbers, arrays and variables, outside of the training step."""

import numpy as np
import torch

import keras

from .. import basics
from .. import torch as hvd
from ..torch import Average, Compression


def _tensor(value):
    """A detached tensor with at least one dimension, and the original shape."""
    if isinstance(value, keras.Variable):
        value = value.value
    if not isinstance(value, torch.Tensor):
        value = torch.from_numpy(np.array(value))
    value = value.detach()
    return value.reshape(1) if value.ndim == 0 else value, value.shape


def _array(tensor, shape=None):
    return (tensor if shape is None else tensor.reshape(shape)).cpu().numpy()


def allreduce(
    value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=Compression.none
):
    """The average (with op=Sum the sum) of all ranks' values, as a NumPy array of the same shape."""
    tensor, shape = _tensor(value)
    op = basics.chosen_op(average, op)
    reduced = hvd.allreduce(tensor, None, name, compression, op, prescale_factor, postscale_factor)
    return _array(reduced, shape)


def allgather(value, name=None):
    """The values of all ranks as a NumPy array, joined along their first dimension, which may differ between ranks."""
    return _array(hvd.allgather(_tensor(value)[0], name))


def broadcast(value, root_rank, name=None):
    """The value of rank `root_rank`, as a NumPy array."""
    tensor, shape = _tensor(value)
    return _array(hvd.broadcast(tensor, root_rank, name), shape)


def reducescatter(value, name=None, op=Average):
    """This rank's part of the average (or sum) along the first dimension, as a NumPy array."""
    return _array(hvd.reducescatter(_tensor(value)[0], name, op=op))


def broadcast_variables(variables, root_rank):
    """Writes the values of rank `root_rank` into these variables on all ranks."""
    waiting = []
    for number, variable in enumerate(variables):
        tensor = variable.value.detach()
        dense = (tensor.reshape(1) if tensor.ndim == 0 else tensor).contiguous().clone()
        handle = hvd.broadcast_async_(dense, root_rank, f"keras.{number}.{variable.path}")
        waiting.append((variable, tensor.shape, dense, handle))
    for variable, shape, dense, handle in waiting:
        hvd.synchronize(handle)
        variable.assign(dense.reshape(shape))


def state_of(model, optimizer=None):
    """The variables that must be equal on all ranks. Seeds are excluded, because dropout must differ between ranks."""
    optimizer = optimizer or getattr(model, "optimizer", None)
    if optimizer is None:
        return list(model.weights)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return [*model.weights, *optimizer.variables]


def broadcast_global_variables(root_rank):
    """Raises NotImplementedError: Keras 3 has no global variables. The text names the replacement."""
    raise NotImplementedError(
        "Keras 3 keeps variables in models and has none that are global: "
        "fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])"
    )
