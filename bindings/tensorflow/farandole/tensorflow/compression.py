"""Compression of gradients before they are sent."""

import tensorflow as tf

from ..basics import NoneCompressor, half_compressor


def _half_compressor(name, dtype, text):
    def shrink(tensor):
        return (tf.cast(tensor, dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    return half_compressor(__name__, name, text, shrink, tf.cast)


class Compression:
    """The compressors for `compression=`: none, fp16 and bf16.

    A compressor has compress(tensor), which returns (tensor, ctx), and decompress(tensor, ctx).
    """

    none = NoneCompressor
    fp16 = _half_compressor("fp16", tf.float16, "Sends floating-point tensors as float16.")
    bf16 = _half_compressor(
        "bf16", tf.bfloat16, "Sends floating-point tensors as bfloat16, which has the range of float32."
    )
