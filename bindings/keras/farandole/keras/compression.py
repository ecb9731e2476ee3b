"""Compression of gradients before they are sent, for tensors of every backend."""

import keras


class NoneCompressor:
    """Sends tensors without compression."""

    @staticmethod
    def compress(tensor):
        """Returns the tensor and None."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the tensor."""
        return tensor


def _half_compressor(name, dtype, text):
    class Compressor:
        @staticmethod
        def compress(tensor):
            own = keras.backend.standardize_dtype(tensor.dtype)
            return (keras.ops.cast(tensor, dtype) if "float" in own else tensor), own

        @staticmethod
        def decompress(tensor, ctx):
            return keras.ops.cast(tensor, ctx)

    Compressor.__doc__ = text
    Compressor.__qualname__ = f"Compression.{name}"  # the name under which pickle finds it
    return Compressor


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
