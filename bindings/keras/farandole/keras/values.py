"""Collectives on numbers, arrays and variables, outside of the training step. They run on NumPy's arrays."""

import contextlib

import keras
import numpy as np

from .. import basics, core, errors
from ..basics import Average, global_process_set, native_op
from .compression import Compression


@contextlib.contextmanager
def _horovods_errors():
    try:
        yield
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def _array(value):
    """The value of a number, list, array, tensor or variable, in memory of its own."""
    if not isinstance(value, (np.ndarray, np.generic, int, float, bool, list, tuple)):
        value = keras.ops.convert_to_numpy(value)
    return np.array(value, order="C")


def _compressed(array, compression):
    """The array to send, and a function that restores the result."""
    if compression is Compression.none:
        return array, lambda result: result
    small, context = compression.compress(keras.ops.convert_to_tensor(array))

    def restore(result):
        return _array(compression.decompress(keras.ops.convert_to_tensor(result), context))

    return _array(small), restore


def allreduce(
    value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=Compression.none
):
    """The average (with op=Sum the sum) of all ranks' values, as a NumPy array of the same shape."""
    op = native_op(basics.chosen_op(average, op))
    array, restore = _compressed(_array(value), compression)
    with _horovods_errors():
        group = global_process_set.group("Allreduce")
        return restore(
            core.allreduce(array, op, name=name, group=group, prescale=prescale_factor, postscale=postscale_factor)
        )


def allgather(value, name=None):
    """The values of all ranks as a NumPy array, joined along their first dimension, which may differ between ranks."""
    with _horovods_errors():
        return core.allgather(np.atleast_1d(_array(value)), name=name, group=global_process_set.group("Allgather"))


def broadcast(value, root_rank, name=None):
    """The value of rank `root_rank`, as a NumPy array."""
    with _horovods_errors():
        root = global_process_set.root(root_rank, "broadcast")
        return core.broadcast(_array(value), root, name=name, group=global_process_set.group("broadcast"))


def reducescatter(value, name=None, op=Average):
    """This rank's part of the average (or sum) along the first dimension, as a NumPy array."""
    array = np.atleast_1d(_array(value))
    with _horovods_errors():
        group = global_process_set.group("Reducescatter")
        return core.reducescatter(array, native_op(op), name=name, group=group)


def broadcast_variables(variables, root_rank):
    """Writes the values of rank `root_rank` into these variables on all ranks.

    MismatchError if the ranks have different numbers of variables, or variables of different shapes; then no variable
    has changed.
    """
    variables = list(variables)
    with _horovods_errors():
        group = global_process_set.group("broadcast")
        root = global_process_set.root(root_rank, "broadcast")
        _require_equal_numbers(len(variables), group)
        waiting = []
        for number, variable in enumerate(variables):
            array = _array(variable)
            name = f"keras.{number}.of{len(variables)}"
            waiting.append((variable, core.broadcast_async(array, root, name=name, out=array, group=group)))
        for variable, value in _all_of(waiting):
            variable.assign(value)


def _all_of(waiting):
    """(variable, value) of each (variable, handle). It waits for all of them before it raises what one has raised.

    The name of an operation stays taken until this rank has waited for it.
    """
    done, failure = [], None
    for variable, handle in waiting:
        try:
            done.append((variable, handle.wait()))
        except errors.Error as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return done


def _require_equal_numbers(number, group):
    numbers = core.allgather(np.array([number]), name="keras.variables", group=group).tolist()
    other = next((rank for rank, theirs in enumerate(numbers) if theirs != number), None)
    if other is not None:
        raise errors.MismatchError(
            f"rank {group.rank} has {number} variables and rank {other} has {numbers[other]}; all ranks must build the "
            "same model and optimizer"
        )


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
