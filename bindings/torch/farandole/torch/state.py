"""Broadcasts of parameters and objects, which make ranks start with the same state. See also optimizer_state.py."""

import math
import pickle

import torch

from .. import errors, objects
from ..basics import global_process_set
from . import ops
from .optimizer_state import broadcast_optimizer_state  # noqa: F401
from .tensors import checked, fault_of


def _reduce_tensor(tensor):
    """For pickle: passes the memory of a plain CPU tensor without a copy. PyTorch's own method copies it twice."""
    is_plain = (
        tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous() and not tensor.is_quantized
        and not tensor.requires_grad and not tensor.is_conj() and not tensor.is_neg() and not tensor.__dict__
    )  # fmt: skip
    if not is_plain:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    try:
        memory = tensor.reshape(-1).view(torch.uint8).numpy()
    except RuntimeError:  # there is no NumPy
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return _tensor_in, (pickle.PickleBuffer(memory), tensor.dtype, tuple(tensor.shape))


def _tensor_in(memory, dtype, shape):
    """The tensor whose elements are in `memory`."""
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


objects.reducers[torch.Tensor] = _reduce_tensor


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """The object of rank `root_rank` of the world, on every rank of the set.

    It is pickled, which is safe because every connection of a job is authenticated. HorovodInternalError if the
    operation fails; all ranks raise if the root cannot pickle its object.
    """
    group = process_set.group("broadcast_object")
    root = process_set.root(root_rank, "broadcast_object")
    try:
        with group.blocking_name("broadcast_object", name) as name:
            return objects.broadcast_object(obj, root, name, group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def allgather_object(obj, name=None):
    """The list of all ranks' objects, in rank order. They are pickled, as by broadcast_object."""
    group = global_process_set.group("allgather_object")
    try:
        with group.blocking_name("allgather_object", name) as name:
            return objects.allgather_object(obj, name, group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def _named_tensors(params):
    if isinstance(params, dict):
        pairs = sorted(params.items())
    elif hasattr(params, "__iter__") and not isinstance(params, (str, bytes, torch.Tensor)):
        pairs = [pair if isinstance(pair, tuple) else (None, pair) for pair in params]
    else:
        raise ValueError(f"invalid params of type {type(params).__name__}: give a dict or a list of (name, tensor)")
    return [(name, tensor) for name, tensor in pairs if tensor is not None]


def broadcast_parameters(params, root_rank):
    """Gives all ranks the values of rank `root_rank`, in place.

    `params`: model.state_dict(), or model.named_parameters(). All are checked before the first is sent. ValueError for
    values that are not tensors.
    """
    dense = []  # checked before the first is sent: the others would wait for a rank that raises in between
    for name, tensor in _named_tensors(params):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name}: broadcast_parameters takes tensors, not {type(tensor).__name__}")
        fault = fault_of(tensor)
        if fault is not None:
            raise errors.InvalidArgumentError(f"broadcast_parameters: {name}: {fault}")
        plain = tensor.detach()
        dense.append((name, plain, checked(plain.contiguous())))
    waiting = [(ops.broadcast_async_(one, root_rank, name), plain, one) for name, plain, one in dense]
    ops.synchronize_all(handle for handle, _, _ in waiting)
    for _, plain, one in waiting:
        if one is not plain:
            plain.copy_(one)
