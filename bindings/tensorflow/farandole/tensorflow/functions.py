"""Broadcasts of variables and objects, which make ranks start with the same state."""

import tensorflow as tf

from .. import errors, objects
from ..basics import global_process_set
from . import calls
from .calls import plain
from .library import ops
from .naming import operation_name
from .reduction import _label

# Variables are broadcast in groups of about this size, each of which needs memory for a copy.
_GROUP_BYTES = 64 << 20


def _groups(values):
    groups, size = [], _GROUP_BYTES
    for index, value in enumerate(values):
        size_bytes = (value.shape.num_elements() or 0) * value.dtype.size
        if size + size_bytes > _GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += size_bytes
    return groups


@plain
def broadcast_(variables, root_rank, name=None, process_set=global_process_set):
    """Gives the variables of all ranks the values of rank `root_rank` (of the world), in place.

    Returns the list of new values, which in a graph of TensorFlow 1 must be run. All ranks pass the same number of
    variables, in the same order, of the same shapes and types.
    """
    variables = list(variables)
    values = [calls.dense(variable) for variable in variables]
    set_id = calls.set_id(process_set, "broadcast")
    assigned = [None] * len(variables)
    kind, name = "broadcast_variables", name or (None if tf.executing_eagerly() else "variables")
    with operation_name(kind, name, None, process_set, True) as base:
        for group in _groups(values):
            names = [f"{base}/{_label(index, variables[index], False)}" for index in group]
            results = calls.run_named(ops.farandole_broadcast, [values[index] for index in group], names, set_id,
                                      root_rank=int(root_rank))  # fmt: skip
            for index, value in zip(group, results):
                assigned[index] = variables[index].assign(value)
    return assigned


@plain
def broadcast_variables(variables, root_rank, process_set=global_process_set, inplace=False):
    """Gives the variables of all ranks the values of rank `root_rank` (of the world): a model's and an optimizer's.

    In a graph of TensorFlow 1 it returns the operation that does so. `inplace` is ignored: it is always in place.
    """
    assigned = broadcast_(variables, root_rank, None, process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_global_variables(root_rank):
    """The operation of a graph of TensorFlow 1 that broadcasts all global variables. RuntimeError in eager mode."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() does not support eager execution; use "
            "hvd.broadcast_variables(<model/optimizer variables>) instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables from rank `root_rank` when a session of TensorFlow 1 has been created.

    `device` is ignored.
    """

    def __init__(self, root_rank, device=""):
        super().__init__()
        self.root_rank = root_rank
        self._operation = None

    def begin(self):
        """Adds the operation to the graph."""
        if self._operation is None or self._operation.graph is not tf.compat.v1.get_default_graph():
            self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session, coord):
        """Runs the operation."""
        session.run(self._operation)


def broadcast_object(obj, root_rank=0, session=None, name=None, process_set=global_process_set):
    """The object of rank `root_rank` of the world, on every rank of the set.

    It is pickled, which is safe because every connection of a job is authenticated. HorovodInternalError if the
    operation fails; all ranks raise if the root cannot pickle its object. `session` is ignored.
    """
    group = process_set.group("broadcast_object")
    root = process_set.root(root_rank, "broadcast_object")
    try:
        with group.blocking_name("broadcast_object", name) as full_name:
            return objects.broadcast_object(obj, root, full_name, group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def broadcast_object_fn(root_rank=0, session=None, name=None, process_set=global_process_set):
    """A function that calls broadcast_object with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj, session=None, name=None, process_set=global_process_set):
    """The list of all ranks' objects, in rank order. They are pickled, as by broadcast_object."""
    group = process_set.group("allgather_object")
    try:
        with group.blocking_name("allgather_object", name) as full_name:
            return objects.allgather_object(obj, full_name, group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None
