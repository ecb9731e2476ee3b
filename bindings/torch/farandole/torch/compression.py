"""Compression of gradients before they are sent."""

import fnmatch

import torch
import torch.distributed as dist

from .. import _native, errors
from ..basics import NoneCompressor, half_compressor
from ..codes import COMPRESSIONS
from .tensors import with_memory


def _half_compressor(name, dtype, text):
    def shrink(tensor):
        with_memory(tensor)
        return (tensor.to(dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    return half_compressor(__name__, name, text, shrink, lambda tensor, dtype: tensor.to(dtype))


class BlockCompressor:
    """Sends float32 tensors in blocks of small numbers with one scale each, for op=Average and op=Sum.

    The library converts, adds the ranks' values in float32, and bounds the error: docs/compression.md. Tensors of
    integers are sent as they are.
    """

    def __init__(self, format, feedback=False, excluded=()):
        self.format = format
        self.feedback = feedback
        self.excluded = tuple(excluded)

    def with_feedback(self):
        """The same with error feedback, for DistributedOptimizer and compression_hook.

        What a rank's conversion has lost of a gradient is kept, and added to the next gradient of the parameter.
        """
        return BlockCompressor(self.format, True, self.excluded)

    def excluding(self, *excluded):
        """The same for DistributedOptimizer, except for some parameters, which are sent as they are.

        `excluded`: names of parameters, in which * stands for any text, or functions of a name and a parameter that
        return whether to exclude it. All ranks must exclude the same.
        """
        for one in excluded:
            if not callable(one) and not isinstance(one, str):
                raise errors.InvalidArgumentError(f"excluding({one!r}): give a name or a function of (name, parameter)")
        return BlockCompressor(self.format, self.feedback, self.excluded + excluded)

    def excludes(self, name, parameter):
        """Whether the parameter is sent as it is."""
        return any(one(name, parameter) if callable(one) else fnmatch.fnmatchcase(name, one) for one in self.excluded)

    def compress(self, tensor):
        """Returns a tensor of integers and None. ValueError for others: only allreduces convert them."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        raise ValueError(f"{self} is for allreduce, grouped_allreduce and DistributedOptimizer; leave it out here")

    def decompress(self, tensor, ctx):
        """Returns the tensor."""
        return tensor

    def __repr__(self):
        return f"Compression.{self.format}" + (".with_feedback()" if self.feedback else "")


def block_format_of(compression, tensor):
    """The number of the block format in which a compressor sends a tensor; 0: in none."""
    if not isinstance(compression, BlockCompressor) or not tensor.dtype.is_floating_point:
        return 0
    return COMPRESSIONS[compression.format]


class Residuals:
    """What compressions have lost, by tensor: the state of error feedback."""

    def __init__(self):
        self._lost = {}

    def add_to(self, key, tensor, block_format):
        """Adds to a contiguous float32 tensor what was lost of it before, and keeps what it will lose now.

        The tensor must then be sent with a prescale of 1. Values that are not finite lose nothing.
        """
        lost = self._lost.get(key)
        if lost is not None and lost.shape == tensor.shape:
            tensor += lost
        elif tensor.numel():
            self._lost[key] = lost = torch.empty_like(tensor)
        else:
            return
        _native.compression_round_trip(block_format, tensor.data_ptr(), lost.data_ptr(), tensor.numel())
        torch.sub(tensor, lost, out=lost)
        lost.nan_to_num_(0.0, 0.0, 0.0)


def compression_hook(compression, process_group=None):
    """A communication hook for DistributedDataParallel over backend="farandole", which averages gradients compressed.

        model.register_comm_hook(None, farandole.torch.compression_hook(Compression.int8.with_feedback()))

    Gradients are float32 on the CPU. `process_group`: None for the default one. ValueError for another backend, or for
    a compression without blocks or with excluded parameters: a bucket is sent as one tensor.
    """
    if not isinstance(compression, BlockCompressor) or compression.excluded:
        raise ValueError(
            f"compression_hook({compression}): give Compression.int8, int4, float8_e4m3, float8_e5m2 or bfloat16, "
            "without excluding()"
        )
    group = process_group if process_group is not None else dist.group.WORLD
    if not hasattr(group, "allreduce_compressed"):
        raise ValueError("compression_hook: the process group's backend is not farandole; use the hooks of torch")
    residuals = Residuals() if compression.feedback else None
    block_format = COMPRESSIONS[compression.format]

    def hook(state, bucket):
        buffer = bucket.buffer()
        if residuals is not None and buffer.dtype is torch.float32 and buffer.is_cpu:
            residuals.add_to(tuple(map(id, bucket.parameters())), buffer, block_format)
        work = group.allreduce_compressed(buffer, block_format, dist.ReduceOp.AVG)
        return work.get_future().then(lambda future: future.value()[0])

    return hook


class Compression:
    """The compressors for `compression=`.

    none, fp16 and bf16 have compress(tensor), which returns (tensor, ctx), and decompress(tensor, ctx). int8, int4,
    float8_e4m3, float8_e5m2 and bfloat16 are BlockCompressors.
    """

    none = NoneCompressor
    fp16 = _half_compressor("fp16", torch.float16, "Sends floating-point tensors as float16.")
    bf16 = _half_compressor(
        "bf16", torch.bfloat16, "Sends floating-point tensors as bfloat16, which has the range of float32."
    )
    int8 = BlockCompressor("int8")
    int4 = BlockCompressor("int4")
    float8_e4m3 = BlockCompressor("float8_e4m3")
    float8_e5m2 = BlockCompressor("float8_e5m2")
    bfloat16 = BlockCompressor("bfloat16")
