"""The ops of libfarandole_tensorflow.so, and the table through which they find process sets."""

import ctypes
import os

import tensorflow as tf

from .. import basics, core, errors

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libfarandole_tensorflow.so")


def _load():
    """The functions of the ops. ImportError if the library cannot register them."""
    ops = tf.load_op_library(PATH)
    if not hasattr(ops, "farandole_allreduce"):
        raise ImportError(
            f"farandole.tensorflow: {os.path.basename(PATH)} was loaded before TensorFlow {tf.__version__}, or this "
            "TensorFlow lacks the C API for kernels (2.13 and later have it); import farandole.tensorflow instead of "
            "loading the library"
        )
    return ops


ops = _load()
_native = ctypes.CDLL(PATH)
_native.farandole_tensorflow_set.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
_native.farandole_tensorflow_set.restype = None
_native.farandole_tensorflow_rank.argtypes = [ctypes.c_int] * 3
_native.farandole_tensorflow_rank.restype = None
_native.farandole_tensorflow_last_loss.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)]
_native.farandole_tensorflow_last_loss.restype = ctypes.c_char_p


def _process_set_changed(number, process_set):
    if process_set is None:
        _native.farandole_tensorflow_set(number, None, 0)
        return
    if number == 0:
        _native.farandole_tensorflow_rank(core.rank(), core.local_rank(), core.local_size())
    group = process_set._group
    _native.farandole_tensorflow_set(number, group.native.address if group.included else None, group.size)


basics.watch_process_sets(_process_set_changed)


def last_loss():
    """The last error of an op that ended its group, as the exception of its code; None if there was none."""
    text, rank = ctypes.create_string_buffer(4096), ctypes.c_int(-1)
    code = _native.farandole_tensorflow_last_loss(text, len(text), ctypes.byref(rank))
    if code is None:
        return None
    return errors.make(code.decode(), text.value.decode(errors="replace"), rank.value)
