"""Collectives in functions that XLA compiles: calls of a handler, which TensorFlow's op XlaCallModule contains.

The op gets a program in the text form of StableHLO, with one custom call. It needs all shapes when a function is
traced. A program belongs to the world in which it was traced: it contains numbers of ranks.
"""

import ctypes
import functools
import importlib
import itertools
import os

import tensorflow as tf

from .. import basics, errors
from ..codes import Kind
from ..frameworks import xla

TARGET = "farandole_tensorflow_collective"  # the name of the handler in compiled programs

_KINDS = {
    "farandole_allreduce": Kind.ALLREDUCE,
    "farandole_allgather": Kind.ALLGATHER,
    "farandole_broadcast": Kind.BROADCAST,
    "farandole_reducescatter": Kind.REDUCE_SCATTER,
    "farandole_alltoall": Kind.ALLTOALL,
}
_TYPES = {tf.float32: "f32", tf.float64: "f64", tf.float16: "f16", tf.bfloat16: "bf16", tf.bool: "i1",
          tf.int8: "i8", tf.int16: "i16", tf.int32: "i32", tf.int64: "i64",
          tf.uint8: "ui8", tf.uint16: "ui16", tf.uint32: "ui32", tf.uint64: "ui64"}  # fmt: skip

_numbers = {}  # by the id of a process set
# Those of farandole.jax are not negative. No number comes twice, so that a program of a former world finds no group.
_next_number = itertools.count(-1, -1)


def register():
    """Registers the handler in TensorFlow's XLA. Returns None, or why that is impossible."""
    try:
        library = xla.library()
    except errors.UnsupportedError as error:
        return str(error).partition(";")[0]
    if _op_that_calls_xla() is None:
        return f"TensorFlow {tf.__version__} has no op XlaCallModule"
    path = os.path.join(os.path.dirname(tf.__file__), "libtensorflow_cc.so.2")
    try:
        # A C++ function without arguments, which returns XLA's table of C functions for handlers.
        table = ctypes.CDLL(path)._ZN3xla3ffi12GetXlaFfiApiEv
    except (OSError, AttributeError):
        return f"TensorFlow {tf.__version__} does not export XLA's functions for handlers"
    table.restype = ctypes.c_void_p
    reason = library.farandole_jax_register_in_tensorflow(table(), TARGET.encode())
    if reason is not None:
        return f"the XLA of TensorFlow {tf.__version__} refuses farandole's handler ({reason.decode(errors='replace')})"
    basics.watch_process_sets(_process_set_changed)
    return None


@functools.cache
def _op_that_calls_xla():
    """The function of the op XlaCallModule, which is not in tf.raw_ops. None if this release has none."""
    try:
        return importlib.import_module("tensorflow.compiler.tf2xla.ops.gen_xla_ops").xla_call_module
    except (ImportError, AttributeError):
        return None


def _process_set_changed(process_set_id, process_set):
    if process_set is not None:
        number = _numbers[process_set_id] = next(_next_number)
        if process_set.included():
            xla.set_group(number, process_set.group("farandole.tensorflow").member().address)
    elif process_set_id in _numbers:
        xla.set_group(_numbers.pop(process_set_id), None)


def loss_in(text):
    """The failure that ended a group and whose text is in this text of an error of TensorFlow, or None."""
    failure = xla.failure_in(text)
    kept = (errors.InvalidArgumentError, errors.MismatchError, errors.NotInitializedError, errors.UnsupportedError)
    return None if isinstance(failure, kept) else failure


# ---- Calls ----------------------------------------------------------------------------------------------------------


def fact(name, process_set_id):
    """A number of this rank as an int32 constant: that of the world in which the function is traced."""
    process_set = _registered(process_set_id)
    values = {
        "size": process_set.size,
        "rank_in_set": process_set.rank,
        "rank": basics.rank,
        "local_size": basics.local_size,
        "local_rank": basics.local_rank,
        "included": lambda: int(process_set.included()),
    }
    return tf.constant(values[name](), tf.int32)


def call(operation, tensors, names, process_set_id, splits=None, total_rows=None, *, reduce_op=0, prescale="1",
         postscale="1", root_rank=None):  # fmt: skip
    """The results of one unit of operations, as the op named `operation` gives them; with their gradients.

    `splits`: of alltoall, a tensor. `total_rows`: of allgather, the rows of all ranks for each tensor; None: all ranks
    have the same number. InvalidArgumentError or FailedPreconditionError if the call is impossible, also where a shape
    is not known.
    """
    from . import gradients  # which uses this module through calls.py

    kind = _KINDS[operation]
    process_set = _member(process_set_id)
    root = 0 if root_rank is None else _root(process_set, root_rank)
    shapes = [_result_shape(kind, name, one, process_set, index, total_rows)
              for index, (name, one) in enumerate(zip(names, tensors))]  # fmt: skip
    received = _equal_rows(names[0], tensors[0], splits, process_set) if kind == Kind.ALLTOALL else None
    attributes = {"tensor_names": [name.encode() for name in names], "process_set": process_set_id,
                  "reduce_op": reduce_op, "prescale": prescale, "postscale": postscale,
                  "root_rank": root_rank}  # fmt: skip
    module = _module(tensors, shapes, kind, names, _numbers[process_set_id], reduce_op, root, prescale, postscale)

    @tf.custom_gradient
    def with_gradient(*inputs):
        results = list(
            _op_that_calls_xla()(inputs, 5, module, shapes, [one.dtype for one in inputs], platforms=["CPU"])
        )
        node = _Node([*inputs, None], [*results, *([] if received is None else [received])], attributes)

        def gradient(*results_gradients):
            if received is not None:
                results_gradients = (*results_gradients, None)
            return gradients.of(operation)(node, *results_gradients)[: len(inputs)]

        return results, gradient

    results = with_gradient(*tensors)
    return results if received is None else (results, received)


class _Node:
    """What the gradient of an op reads of the op."""

    def __init__(self, inputs, outputs, attributes):
        self.inputs, self.outputs, self._attributes = inputs, outputs, attributes

    def get_attr(self, name):
        return self._attributes[name]


def _error(kind, text):
    return kind(None, None, text)


def _registered(process_set_id):
    if not basics.is_initialized():
        raise _error(tf.errors.FailedPreconditionError, "farandole has not been initialized; use hvd.init().")
    return basics._process_sets[process_set_id]


def _member(process_set_id):
    process_set = _registered(process_set_id)
    if not process_set.included():
        raise _error(
            tf.errors.InvalidArgumentError,
            f"Rank {basics.rank()} is not a member of the provided process set {process_set_id}.",
        )
    return process_set


def _root(process_set, root_rank):
    try:
        return process_set.root(root_rank, "broadcast")
    except errors.InvalidArgumentError as error:
        raise _error(tf.errors.InvalidArgumentError, str(error)) from None


def _result_shape(kind, name, tensor, process_set, index, total_rows):
    if not tensor.shape.is_fully_defined():
        raise _error(
            tf.errors.InvalidArgumentError,
            f"{name}: the shape {tensor.shape} is not known when the function is traced, which jit_compile=True needs; "
            "give the function tensors of one shape, or use jit_compile=False",
        )
    shape = tensor.shape.as_list()
    if kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        return shape
    if not shape:
        raise _error(
            tf.errors.FailedPreconditionError,
            f"{name}: a tensor without dimensions has no rows; use tf.expand_dims(tensor, 0)",
        )
    rows, size = shape[0], process_set.size()
    if kind == Kind.ALLGATHER:
        rows = rows * size if total_rows is None else total_rows[index]
    if kind == Kind.REDUCE_SCATTER:  # the first ranks get one more where the rows do not divide evenly
        rows = rows // size + (process_set.rank() < rows % size)
    return [rows, *shape[1:]]


def _equal_rows(name, tensor, splits, process_set):
    """The rows from each rank of an alltoall, as a constant: the same number from each."""
    size, rows = process_set.size(), tensor.shape[0]
    given = None if splits is None else tf.get_static_value(splits)
    if given is None or (len(given) and list(given) != [rows // size] * size):
        raise _error(
            tf.errors.InvalidArgumentError,
            f"{name}: with splits the shape of the result is not known when the function is traced, which "
            "jit_compile=True needs; leave them out, or use jit_compile=False",
        )
    if rows % size:
        raise _error(
            tf.errors.InvalidArgumentError,
            f"splits not provided, but first dimension of tensor ({rows}) is not divisible by the number of workers "
            f"({size}).",
        )
    return tf.constant([rows // size] * size, tf.int32)


# ---- Programs -------------------------------------------------------------------------------------------------------


def _type(shape, dtype):
    if dtype not in _TYPES:
        raise _error(tf.errors.InvalidArgumentError, f"{dtype.name} is a type that farandole does not reduce")
    return f"tensor<{''.join(f'{extent}x' for extent in shape)}{_TYPES[dtype]}>"


def _module(tensors, shapes, kind, names, group, op, root, prescale, postscale):
    """The program. The attributes are those of bindings/jax/native/handler.cpp.

    The call has a side effect, so that XLA neither moves it out of a loop nor merges it with another.
    """
    inputs = [_type(one.shape, one.dtype) for one in tensors]
    outputs = [_type(shape, one.dtype) for shape, one in zip(shapes, tensors)]
    arguments = [f"%arg{index}" for index in range(len(inputs))]
    results = [f"%0#{index}" for index in range(len(outputs))] if len(outputs) > 1 else ["%0"]
    names = "".join(f"\\{byte:02X}" for byte in b"".join(name.encode() + b"\0" for name in names))
    attributes = (
        f'names = "{names}", group = {group} : i64, kind = {int(kind)} : i32, op = {int(op)} : i32, '
        f"root = {root} : i32, prescale = {float(prescale)!r} : f64, postscale = {float(postscale)!r} : f64, "
        "priority = 0 : i32, splits = array<i64>, tokens = 0 : i32"
    )
    declared = ", ".join(f"{argument}: {one}" for argument, one in zip(arguments, inputs))
    made = f"%0:{len(outputs)}" if len(outputs) > 1 else "%0"
    return f"""module @farandole {{
  func.func public @main({declared}) -> ({", ".join(outputs)}) {{
    {made} = stablehlo.custom_call @{TARGET}({", ".join(arguments)}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{{attributes}}}
    }} : ({", ".join(inputs)}) -> ({", ".join(outputs)})
    return {", ".join(results)} : {", ".join(outputs)}
  }}
}}""".encode()
