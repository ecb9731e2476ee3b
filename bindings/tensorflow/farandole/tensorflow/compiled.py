"""Functions with jit_compile=True, which XLA compiles and which cannot contain farandole's ops."""

import sys

import tensorflow as tf


def refuse():
    """UnimplementedError if the operation is being traced for a function with jit_compile=True."""
    if tf.executing_eagerly() or not _traces_for_xla():
        return
    raise tf.errors.UnimplementedError(
        None,
        None,
        "farandole's operations cannot be compiled by XLA; use tf.function and model.compile with jit_compile=False",
    )


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
