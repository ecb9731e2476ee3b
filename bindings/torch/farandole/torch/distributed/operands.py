"""Conversion of torch's tensors and reductions to addresses, counts, types and operators of an ordered communicator."""

import torch

from ... import errors
from ...codes import Op
from ..tensors import DTYPES

# The core's type for elements, and how many of them make one element. Elements without such a type are sent as bytes.
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
    """(type, elements of that type for one element) of elements that are only moved."""
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
    """(type, elements of that type for one element, operator, factor before the reduction)."""
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
    """The elements are not in one block of memory."""


_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def checked(tensor):
    """Returns the tensor if the library can read its memory. InvalidArgumentError otherwise."""
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
    """Whether the tensor's elements are in memory in their order and without lazy negation or conjugation."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def source(tensor):
    """A tensor with the same elements that can be read: the tensor itself, or a plain copy."""
    tensor = checked(tensor)
    if is_plain(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def target(tensor):
    """(a tensor that can be written instead, the function to call afterwards or None)."""
    tensor = checked(tensor)
    if is_plain(tensor):
        return tensor, None
    plain = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return plain, lambda: tensor.detach().copy_(plain)


def both(tensor):
    """As target(), for a tensor that is also read."""
    plain, afterwards = target(tensor)
    if afterwards is not None:
        plain.copy_(tensor.detach())
    return plain, afterwards


def _is_one_block(tensors):
    """Whether the tensors have one type and follow each other in memory without gaps."""
    at = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.dtype is not tensors[0].dtype or not is_plain(tensor) or (tensor.numel() and tensor.data_ptr() != at):
            return False
        at += tensor.numel() * tensor.element_size()
    return True


def joined_source(tensors):
    """One block with the elements of all tensors, and its address. It is their own memory if that is one block."""
    for tensor in tensors:
        checked(tensor)
    if _is_one_block(tensors):
        return tensors, tensors[0].data_ptr()
    block = torch.cat([tensor.detach().resolve_conj().resolve_neg().reshape(-1) for tensor in tensors])
    return block, block.data_ptr()


def joined_target(tensors):
    """(the objects to keep, an address, the function to call afterwards or None) of one block for all tensors."""
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
        raise errors.InvalidArgumentError(
            f"the input holds {one.dtype}, the output {other.dtype}; they must have the same type"
        )
