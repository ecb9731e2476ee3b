"""Compression of gradients."""

from farandole.torch.compression import Compression, NoneCompressor  # noqa: F401

Compressor = NoneCompressor
FP16Compressor = Compression.fp16
