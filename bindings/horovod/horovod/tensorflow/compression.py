"""Compression of gradients."""

from farandole.tensorflow.compression import Compression, NoneCompressor

Compressor = NoneCompressor
FP16Compressor = Compression.fp16
