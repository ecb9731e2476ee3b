"""Compression of gradients before they are sent."""

import torch

from ..basics import NoneCompressor, half_compressor
from .tensors import with_memory


def _half_compressor(name, dtype, text):
    def shrink(tensor):
        with_memory(tensor)
        return (tensor.to(dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    return half_compressor(__name__, name, text, shrink, lambda tensor, dtype: tensor.to(dtype))


class Compression:
    """The compressors for `compression=`: none, fp16 and bf16.

    A compressor has compress(tensor), which returns (tensor, ctx), and decompress(tensor, ctx).
    """

    none = NoneCompressor
    fp16 = _half_compressor("fp16", torch.float16, "Sends floating-point tensors as float16.")
    bf16 = _half_compressor(
        "bf16", torch.bfloat16, "Sends floating-point tensors as bfloat16, which has the range of float32."
    )
