"""Making ranks start alike: parameters, any object; the state of optimizers: optimizer_state.py."""

import torch

from .. import core, errors, objects
from ..basics import global_process_set
from . import ops
from .optimizer_state import broadcast_optimizer_state  # noqa: F401


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """The object of rank `root_rank` of the world. It travels pickled, which is safe only because every connection of a
    job is authenticated."""
    group = process_set.group("broadcast_object")
    root = process_set.root(root_rank, "broadcast_object")
    try:
        with core.named_here(group, "broadcast_object", name) as name:
            return objects.broadcast_object(obj, root, name, group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None


def allgather_object(obj, name=None):
    """The objects of all ranks, in rank order. They travel pickled, as broadcast_object's."""
    group = global_process_set.group("allgather_object")
    try:
        with core.named_here(group, "allgather_object", name) as name:
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
    """Gives all ranks root_rank's values: model.state_dict(), or model.named_parameters()."""
    waiting = []
    for name, tensor in _named_tensors(params):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name}: broadcast_parameters takes tensors, not {type(tensor).__name__}")
        plain = tensor.detach()
        if plain.is_contiguous():
            waiting.append((ops.broadcast_async_(plain, root_rank, name), None, None))
        else:
            dense = plain.contiguous()
            waiting.append((ops.broadcast_async_(dense, root_rank, name), plain, dense))
    for handle, plain, dense in waiting:
        ops.synchronize(handle)
        if plain is not None:
            plain.copy_(dense)
