"""Gradients of Keras on PyTorch: tensors, reduced as one unit."""

import torch

from .. import torch as hvd
from ..basics import Max


@torch.compiler.disable  # with jit_compile=True: the step is compiled up to here, and from here on
def reduce(reduction, gradients, name):
    """Returns the reductions of gradients over the ranks of the set, by one grouped allreduce."""
    compression = reduction.compression
    packed = [compression.compress(gradient.detach().contiguous()) for gradient in gradients]
    handle = hvd.grouped_allreduce_async([tensor for tensor, _ in packed], None, name, reduction.op, reduction.prescale,
                                         reduction.postscale, reduction.process_set)  # fmt: skip
    reduced = hvd.synchronize(handle)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, packed)]


@torch.compiler.disable
def fill_missing(gradients, variables, name, process_set):
    """Replaces None by zeros where another rank has a gradient. All ranks then have gradients of the same variables.

    PyTorch records the operations of each batch anew, so ranks may have used different variables.
    """
    present = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.uint8)
    anywhere = hvd.allreduce(present, name=f"{name}.present", op=Max, process_set=process_set).tolist()
    return [
        torch.zeros_like(variable.value) if gradient is None and wanted else gradient
        for gradient, variable, wanted in zip(gradients, variables, anywhere)
    ]


def scaled(gradient, factor):
    """The gradient times a number."""
    return gradient if factor == 1 else gradient.detach() * factor


def only_when(condition, reduce, gradients):
    """reduce(gradients): PyTorch calls this in update steps only."""
    return reduce(gradients)


def refuse_strategy():
    """keras.distribution is the only other distribution on PyTorch."""


def check_model(model):
    """PyTorch's training step needs no check."""


def attach_state(model):
    """Variables always have the current values."""


def abandon_step(model):
    """An interrupted step leaves nothing behind."""


def copies_of(tensors):
    """The values in memory of their own."""
    return [tensor.detach().clone() for tensor in tensors]


def failure_of(error):
    """None: the collectives raise farandole's own errors."""
    return None
