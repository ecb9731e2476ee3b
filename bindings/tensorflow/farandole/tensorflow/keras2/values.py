"""Collectives on numbers, arrays and variables, outside of the training step."""

import numpy as np
import tensorflow as tf

from ... import errors
from ...basics import Average, global_process_set
from .. import functions, ops
from ..compression import Compression


def allreduce(
    value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=Compression.none
):
    """The average (with op=Sum the sum) of all ranks' values, as a NumPy array of the same shape."""
    return ops.allreduce(value, average, compression=compression, op=op, prescale_factor=prescale_factor,
                         postscale_factor=postscale_factor, name=name).numpy()  # fmt: skip


def allgather(value, name=None):
    """The values of all ranks as a NumPy array, joined along their first dimension, which may differ between ranks."""
    return ops.allgather(np.atleast_1d(value), name).numpy()


def broadcast(value, root_rank, name=None):
    """The value of rank `root_rank`, as a NumPy array."""
    return ops.broadcast(value, root_rank, name).numpy()


def reducescatter(value, name=None, op=Average):
    """This rank's part of the average (or sum) along the first dimension, as a NumPy array."""
    return ops.reducescatter(np.atleast_1d(value), op=op, name=name).numpy()


def state_of(model, optimizer=None):
    """The variables that must be equal on all ranks: those of the model and of its optimizer."""
    optimizer = optimizer or getattr(model, "optimizer", None)
    if optimizer is None:
        return list(model.weights)
    build(optimizer, model.trainable_variables)
    return [*model.weights, *variables_of(optimizer)]


def variables_of(optimizer):
    """The variables of the optimizer: in some releases of Keras they are a method."""
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def build(optimizer, variables):
    """Makes the optimizer's variables for these variables of a model."""
    # Optimizers of tf.keras.optimizers.legacy have the second method.
    (optimizer.build if hasattr(optimizer, "build") else optimizer._create_all_weights)(variables)


def broadcast_variables(variables, root_rank):
    """Writes the values of rank `root_rank` into these variables on all ranks.

    MismatchError if the ranks have different numbers of variables. FailedPreconditionError of TensorFlow if variables
    have different shapes.
    """
    variables = list(variables)
    counts = allgather(tf.constant([len(variables)]), "keras.variables").tolist()
    other = next((rank for rank, count in enumerate(counts) if count != len(variables)), None)
    if other is not None:
        raise errors.MismatchError(
            f"rank {global_process_set.rank()} has {len(variables)} variables and rank {other} has {counts[other]}; "
            "all ranks must build the same model and optimizer"
        )
    functions.broadcast_variables(variables, root_rank)


def broadcast_global_variables(root_rank):
    """Raises NotImplementedError: models of TensorFlow 2 keep their variables. The text names the replacement."""
    raise NotImplementedError(
        "Keras keeps variables in models and has none that are global: "
        "fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])"
    )
