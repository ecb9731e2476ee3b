"""From tensors and reductions of torch to the addresses, counts, types and operations of an ordered communicator."""

import torch

from ... import errors
from ...codes import Op
from ..tensors import DTYPES

# How elements travel: the core's type, and how many of those make one element. What the core has no type for are bytes.
_PAIRS = {torch.complex64: (DTYPES[torch.float32], 2), torch.complex128: (DTYPES[torch.float64], 2)}
_BYTE = DTYPES[torch.uint8]
_moved = {dtype: (number, 1) for dtype, number in DTYPES.items()} | _PAIRS

# The core's numbers of torch's operations.
_CORE_OPS = {name: int(op) for name, op in {
    "SUM": Op.SUM, "AVG": Op.AVERAGE, "PRODUCT": Op.PRODUCT, "MIN": Op.MIN, "MAX": Op.MAX,
    "BAND": Op.BIT_AND, "BOR": Op.BIT_OR, "BXOR": Op.BIT_XOR,
}.items()}  # fmt: skip
_LOGICAL_OPS = {name: int(op) for name, op in {
    "SUM": Op.LOGICAL_OR, "MAX": Op.LOGICAL_OR, "BOR": Op.LOGICAL_OR, "BXOR": Op.LOGICAL_XOR,
    "PRODUCT": Op.LOGICAL_AND, "MIN": Op.LOGICAL_AND, "BAND": Op.LOGICAL_AND,
}.items()}  # fmt: skip


def moved_as(dtype):
    """(type, elements of it for one element) of what is only moved."""
    found = _moved.get(dtype)
    if found is None:
        found = _moved[dtype] = (_BYTE, torch.empty(0, dtype=dtype).element_size())
    return found


def op_name(op):
    if hasattr(op, "op"):
        return op.op.name
    return op.name if hasattr(op, "name") else op.__getstate__()[0].name


def _factor_of(op):
    factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise errors.InvalidArgumentError(f"PREMUL_SUM takes one factor, not a tensor of {factor.numel()}")
        factor = factor.item()
    return float(factor)


_reduced = {}


def reduced_as(dtype, op):
    """(type, elements of it for one element, operation, factor before it)."""
    found = _reduced.get((dtype, hash(op)))
    if found is not None:
        return found
    name = op_name(op)
    if name == "PREMUL_SUM":
        return _reduced_by_name(dtype, "SUM", _factor_of(op))
    found = _reduced[dtype, hash(op)] = _reduced_by_name(dtype, name, 1.0)
    return found


def _reduced_by_name(dtype, name, factor):
    if dtype in DTYPES:
        if dtype is not torch.bool:
            return DTYPES[dtype], 1, _CORE_OPS[name], factor
        if name in _LOGICAL_OPS and factor == 1.0:
            return DTYPES[dtype], 1, _LOGICAL_OPS[name], factor
    elif dtype in _PAIRS and name in ("SUM", "AVG"):
        return *_PAIRS[dtype], _CORE_OPS[name], factor
    raise errors.InvalidArgumentError(f"{name} is not defined for tensors of {dtype}")


class NotDense(errors.InvalidArgumentError):
    """The elements do not lie in one place."""


_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def checked(tensor):
    """The tensor, where the library can read its memory."""
    if type(tensor) not in _ORDINARY and hasattr(tensor, "to_local"):
        raise errors.InvalidArgumentError(
            "the tensor is a DTensor, whose elements lie on several ranks; give its own part: to_local()"
        )
    if not tensor.is_cpu and tensor.device.type != "cuda":
        if tensor.is_meta:
            raise errors.InvalidArgumentError(
                "the tensor is on the meta device and has no data; make it on the CPU or on CUDA first, as with "
                "to_empty()"
            )
        raise errors.InvalidArgumentError(
            f"the tensor is on {tensor.device}; backend='farandole' takes tensors on the CPU and on CUDA: bring it "
            "there"
        )
    if tensor.layout is not torch.strided:
        raise NotDense(f"the tensor's layout is {tensor.layout}; call to_dense() on it first")
    return tensor


def is_plain(tensor):
    """Whether its elements lie in memory in their order, as they are."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def source(tensor):
    """What can be read in its place: itself, or a plain copy."""
    tensor = checked(tensor)
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def target(tensor):
    """(what can be written in its place, what to do afterwards or None)."""
    tensor = checked(tensor)
    if is_plain(tensor):
        return tensor, None
    plain = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return plain, lambda: tensor.detach().copy_(plain)


def both(tensor):
    """As target, for what is read too."""
    plain, afterwards = target(tensor)
    if afterwards is not None:
        plain.copy_(tensor.detach())
    return plain, afterwards


def _is_one_block(tensors):
    """Whether they have one type and follow each other in memory without a gap."""
    at = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.dtype is not tensors[0].dtype or not is_plain(tensor) or (tensor.numel() and tensor.data_ptr() != at):
            return False
        at += tensor.numel() * tensor.element_size()
    return True


def joined_source(tensors):
    """One block with the elements of all, and its address: their own where they are one block already."""
    for tensor in tensors:
        checked(tensor)
    if _is_one_block(tensors):
        return tensors, tensors[0].data_ptr()
    block = torch.cat([tensor.detach().resolve_conj().resolve_neg().reshape(-1) for tensor in tensors])
    return block, block.data_ptr()


def joined_target(tensors):
    """(what to keep, address, what to do afterwards or None) of one block that all can be filled from."""
    for tensor in tensors:
        checked(tensor)
    if _is_one_block(tensors):
        return tensors, tensors[0].data_ptr(), None
    counts = [tensor.numel() for tensor in tensors]
    block = torch.empty(sum(counts), dtype=tensors[0].dtype, device=tensors[0].device)

    def spread():
        for tensor, part in zip(tensors, block.split(counts)):
            tensor.detach().copy_(part.view(tensor.shape))

    return block, block.data_ptr(), spread


def same_dtype(one, other):
    if one.dtype is not other.dtype:
        raise errors.InvalidArgumentError(f"the input holds {one.dtype}, the output {other.dtype}; give them one type")
