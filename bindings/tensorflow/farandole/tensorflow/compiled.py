"""Functions with jit_compile=True, which XLA compiles: refused, or compiled with FARANDOLE_TENSORFLOW_XLA=1.

XLA cannot compile the ops of this package. With the setting, collectives in such functions are calls of the handler in
xla.py instead.
"""

import functools
import sys

import tensorflow as tf

from .. import core
from .versions import release

# Releases before have XLA's table of functions for handlers with another layout, under the same version number.
_OLDEST = (2, 19)


def is_traced():
    """Whether a function that XLA compiles is being traced. UnimplementedError if it cannot contain collectives."""
    if tf.executing_eagerly() or not _traces_for_xla():
        return False
    reason = refusal()
    if reason is not None:
        raise tf.errors.UnimplementedError(None, None, reason)
    return True


def refuse(operation):
    """UnimplementedError if the operation is being traced for a function that XLA compiles."""
    if is_traced():
        raise tf.errors.UnimplementedError(
            None, None, f"{operation} has no tensor, and XLA cannot compile it; call it outside jit_compile=True"
        )


@functools.cache
def refusal():
    """Why functions that XLA compiles cannot contain collectives here: one sentence, or None if they can."""
    if not _is_wanted():
        return (
            "farandole's operations cannot be compiled by XLA without FARANDOLE_TENSORFLOW_XLA=1; set it, or use "
            "tf.function and model.compile with jit_compile=False"
        )
    if release() < _OLDEST:
        return _impossible(f"TensorFlow 2.19 or newer is needed, and this is {tf.__version__}")
    # What runs on another device has its memory there.
    others = sorted({one.device_type for one in tf.config.list_physical_devices()} - {"CPU"})
    if others:
        return _impossible(f"this process has a {others[0]}, and XLA's calls work on CPUs only")
    from . import xla

    problem = xla.register()
    return None if problem is None else _impossible(problem)


def _impossible(reason):
    return f"FARANDOLE_TENSORFLOW_XLA=1: {reason}; use tf.function and model.compile with jit_compile=False"


def _is_wanted():
    return core.setting("tensorflow_xla") == "1"


def _traces_for_xla():
    # TensorFlow does not note it in the graph. The function that is being traced is a local variable of its methods.
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("polymorphic_function.py"):
            function = frame.f_locals.get("self")
            if getattr(function, "_jit_compile", None):
                return True
        frame = frame.f_back
    return False
