"""Conversion of tensors to the pointer, type and shape that the core takes, and back."""

import torch

from .. import core, errors
from ..basics import global_process_set
from ..codes import DEVICE_CUDA, DTYPE_NAMES

# The numbers of the types that both support; older versions of torch have fewer.
DTYPES = {getattr(torch, name): number for number, name in DTYPE_NAMES.items() if hasattr(torch, name)}


def fault_of(tensor):
    """The reason why an object has no memory that the core can read, with the remedy; None if it may have."""
    kind = type(tensor)
    if not isinstance(tensor, torch.Tensor):
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        return (
            f"tensor is a {name}, and farandole.torch takes torch.Tensor; convert it with torch.as_tensor, or call "
            "farandole's own functions, which take arrays"
        )
    if hasattr(tensor, "to_local"):
        return f"tensor is a {kind.__name__}, of which each rank holds a part; give that part, tensor.to_local()"
    if tensor.is_meta:
        return (
            "tensor is a meta tensor, which has a shape and no data; "
            "give it memory first, with torch.empty_like(..., device=)"
        )
    return None


def with_memory(tensor):
    """Returns the tensor. InvalidArgumentError if it is not a tensor or has no memory."""
    fault = fault_of(tensor)
    if fault is not None:
        raise errors.InvalidArgumentError(fault)
    return tensor


def checked(tensor):
    """Returns the tensor if the core can read its memory. InvalidArgumentError otherwise."""
    if type(tensor) is not torch.Tensor or not tensor.is_cpu:
        with_memory(tensor)
    if tensor.dtype not in DTYPES:
        raise errors.InvalidArgumentError(f"Tensor type {tensor.type()} is not supported.")
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise errors.InvalidArgumentError(
            "Tensor is required to be contiguous. Call contiguous() on it first."
            if tensor.layout is torch.strided
            else "Tensor is required to be dense. Call to_dense() on it first, or use sparse_allreduce_async."
        )
    if tensor.is_neg():
        raise errors.InvalidArgumentError("Tensor is a negative view. Call resolve_neg() on it first.")
    return tensor


def one_device(tensors):
    """Raises unless all tensors are on one device."""
    if len({tensor.device for tensor in tensors}) > 1:
        raise errors.also(errors.InvalidArgumentError, errors.HorovodInternalError)(
            "Tensors in list must be on same device."
        )


def is_within_reach(tensor):
    """Whether the core can use the tensor without a copy."""
    return tensor.is_cpu or (tensor.device.type == "cuda" and core.can_use_device(DEVICE_CUDA, tensor.device.index))


def within_reach(tensor):
    """The tensor itself, or a copy on the CPU if it is on a device that the core does not support."""
    return tensor if is_within_reach(tensor) else tensor.detach().to("cpu")


def on_host(tensor):
    """The tensor itself, or a copy on the CPU if it is on a device."""
    return tensor if tensor.is_cpu else tensor.detach().to("cpu")


def stream_of(tensors):
    """The current stream of the tensors' device; None if they are not on CUDA."""
    for tensor in tensors:
        return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None
    return None


def catch_up(now, *others):
    """Orders later work of the stream `now` after the work that the other streams have queued."""
    for stream in others:
        if stream.cuda_stream != now.cuda_stream:
            now.wait_stream(stream)


def place_of(tensor, stream=None):
    """The device and stream of a tensor for the core; None on the CPU. `stream`: the current one by default."""
    if tensor.is_cpu:
        return None
    stream = stream or torch.cuda.current_stream(tensor.device)
    return DEVICE_CUDA, tensor.device.index, stream.cuda_stream


def from_memory(memory, shape, dtype, device):
    """A tensor over memory that the core has allocated. It keeps the memory alive."""
    if memory is None or 0 in shape:
        return torch.empty(shape, dtype=dtype, device=device)
    if hasattr(memory, "__cuda_array_interface__"):
        # A copy, because the caller may use the tensor on any stream and for any time.
        return torch.as_tensor(memory, device=device).view(dtype).view(shape).clone()
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape).to(device)


def empty(*size, dtype=None, device="cpu", process_set=global_process_set):
    """A tensor of zeros in memory that all ranks of the host map, where possible. Collectives on it need no copies.

    The memory lives until the tensor is freed, also after shutdown. `size` is a shape, as integers or as one sequence;
    `dtype` is torch's default dtype by default.

    With a CUDA `device` the memory is symmetric memory for named operations of `process_set`. All ranks of the set then
    call this in the same order and for the same number of bytes. NCCL works in it without copies, where possible.
    """
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise errors.InvalidArgumentError(f"dtype={dtype!r} is not a torch.dtype; give one, such as torch.float32")
    device = torch.device(device)
    if device.type == "cuda":
        return _empty_on_cuda(shape, dtype, device, process_set)
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(core.allocate(shape.numel() * dtype.itemsize), dtype=dtype).view(shape)


def _empty_on_cuda(shape, dtype, device, process_set):
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    if shape.numel() == 0 or not core.can_use_device(DEVICE_CUDA, device.index):
        return torch.zeros(shape, dtype=dtype, device=device)
    place = DEVICE_CUDA, device.index, torch.cuda.current_stream(device).cuda_stream
    memory = core.allocate_on_device(shape.numel() * dtype.itemsize, place, process_set.group("empty"))
    return torch.as_tensor(memory, device=device).view(dtype).view(shape)
