"""Names of operations, by which ranks match them.

Eager operations end before the caller continues and are named as those of other frameworks. In a graph a name is fixed
when the operation is traced. It consists of the kind, the function, and the caller's name or that of the tensor,
because ranks may trace operations in different orders. A number makes it unique in the graph: operations of a graph
overlap.
"""

import contextlib
import re

import tensorflow as tf


@contextlib.contextmanager
def operation_name(kind, name, tensor, process_set, ignore_name_scope=False):
    """A context with the full name of one operation, for as long as it is traced or, in eager mode, runs."""
    if not tf.executing_eagerly():
        yield _name_in_graph(kind, name, tensor, ignore_name_scope)
    elif process_set._group is None:  # the operation fails
        yield f"{kind}.{name}"
    else:
        with process_set._group.blocking_name(kind, name) as full_name:
            yield full_name


def unique_name(full_name):
    """The name itself, or with a number if the current graph has an operation of that name. In eager mode as it is."""
    if tf.executing_eagerly():
        return full_name
    function = _function_of(tf.compat.v1.get_default_graph())
    used = getattr(function, "_farandole_names", None)
    if used is None:
        used = function._farandole_names = {}
    number = used[full_name] = used.get(full_name, -1) + 1
    return f"{full_name}_{number}" if number else full_name


def _name_in_graph(kind, name, tensor, ignore_name_scope):
    graph = tf.compat.v1.get_default_graph()
    if name is None:
        name = re.sub(r":0$", "", getattr(tensor, "name", "captured"))  # eager tensors have no names
    elif not ignore_name_scope:
        scope = graph.get_name_scope()
        name = f"{scope}/{name}" if scope else name
    function = getattr(_function_of(graph), "name", "graph")
    function = re.sub(r"(_\d+)+$", "", function)  # TensorFlow's count of functions, which ranks need not have alike
    return unique_name(f"{kind}.{function}.{_normalised(name)}")


def _function_of(graph):
    """The graph of the function whose branch or loop body `graph` is, or `graph` itself.

    The graphs of branches and bodies have names with a count of all graphs, and overlap with each other.
    """
    while type(graph).__name__ != "FuncGraph" and getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def _normalised(name):
    return re.sub(r"[^\w./:-]", "_", name)
