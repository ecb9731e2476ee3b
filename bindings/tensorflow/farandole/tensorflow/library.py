"""The ops: those of libfarandole_tensorflow.so, or those of fallback.py where TensorFlow is too old for them."""

from .versions import has_asynchronous_kernels

if has_asynchronous_kernels():
    from .native import last_loss, ops
else:
    from . import fallback as ops
    from .fallback import last_loss

__all__ = ["last_loss", "ops"]
