"""Compression of gradients before they are sent, for tensors of every backend."""

import keras

from ..basics import NoneCompressor, half_compressor


def _half_compressor(name, dtype, text):
    def shrink(tensor):
        own = keras.backend.standardize_dtype(tensor.dtype)
        return (keras.ops.cast(tensor, dtype) if "float" in own else tensor), own

    return half_compressor(__name__, name, text, shrink, keras.ops.cast)


class Compression:
    """The compressors for `compression=`: none, fp16 and bf16.

    A compressor has compress(tensor), which returns (tensor, ctx), and decompress(tensor, ctx). Those of
    farandole.tensorflow, farandole.torch and farandole.jax work with Keras on that backend too.
    """

    none = NoneCompressor
    fp16 = _half_compressor("fp16", "float16", "Sends floating-point tensors as float16.")
    bf16 = _half_compressor(
        "bf16", "bfloat16", "Sends floating-point tensors as bfloat16, which has the range of float32."
    )
