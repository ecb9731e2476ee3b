"""Compression of gradients."""

from farandole.torch.compression import Compression, NoneCompressor

Compressor = NoneCompressor
FP16Compressor = Compression.fp16
