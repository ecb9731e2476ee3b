"""Calls of the native ops: what all collectives have in common."""

import tensorflow as tf

from .. import errors
from ..world import member_names
from . import compiled, xla
from .library import ops
from .naming import operation_name

# For functions that programs call in a tf.function: AutoGraph need not convert them.
plain = tf.autograph.experimental.do_not_convert


def run(function, kind, tensors, name, process_set, *more_inputs, grouped=False, ignore_name_scope=False, **attributes):
    """Runs or traces one op on tensors and returns its outputs.

    `kind` begins the names. `grouped`: the tensors are one group, and each has a name of its own.
    """
    with operation_name(kind, name, tensors[0], process_set, ignore_name_scope) as full_name:
        names = member_names(full_name, len(tensors)) if grouped else [full_name]
        return run_named(function, tensors, names, set_id(process_set, kind), *more_inputs, **attributes)


def run_named(function, tensors, names, process_set_id, *more_inputs, **attributes):
    """The same for names that are complete."""
    if compiled.is_traced():
        return xla.call(function.__name__, tensors, names, process_set_id, *more_inputs, **attributes)
    return function(tensors, *more_inputs, token(), tensor_names=names, process_set=process_set_id, **attributes)


def fact(name, process_set_id=0):
    """A number of this rank as an int32 tensor, computed at each run, except for functions that XLA compiles."""
    if compiled.is_traced():
        return xla.fact(name, process_set_id)
    return ops.farandole_fact(fact=name, process_set=process_set_id)


def set_id(process_set, operation):
    """The number of a process set. InvalidArgumentError of TensorFlow if it has none."""
    if process_set.process_set_id is None:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"{operation}: process set {process_set} does not exist, or has not been registered; "
            "give it to init(process_sets=...) or add_process_set",
        )
    return process_set.process_set_id


def scale(factor):
    """A factor as the ops take it: text, because TensorFlow's attributes have 32 bits."""
    return repr(float(factor))


_eager_token = None


def token():
    """The last input of each collective: a value that TensorFlow does not know when it optimizes a graph.

    Otherwise it would compute collectives of constants once, and not at each run.
    """
    global _eager_token
    if tf.executing_eagerly():
        if _eager_token is None:
            with tf.device("CPU:0"):
                _eager_token = tf.constant(0)
        return _eager_token
    graph = tf.compat.v1.get_default_graph()
    if not graph.building_function:  # of TensorFlow 1: its branches and loops are parts of one graph
        return ops.farandole_token()
    made = getattr(graph, "_farandole_token", None)
    if made is None:
        with tf.control_dependencies(None):
            made = graph._farandole_token = ops.farandole_token()
    return made


def dense(value):
    """A variable, an array or a number as a tensor. InvalidArgumentError if TensorFlow cannot convert it."""
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgumentError(f"{type(value).__name__} cannot be used as a tensor: {error}") from error
