"""The state of an optimizer: loading it in place, and broadcasting it."""

import contextlib
import pickle

import torch

from .. import errors, objects
from ..basics import global_process_set
from . import ops


def put_back(optimizer, groups, state):
    """After load_state_dict: restores the optimizer's own list of groups, group dicts and state dict, with the loaded
    values.

    Schedulers refer to these objects, and so does the other optimizer if one wraps the other.
    """
    loaded = optimizer.param_groups
    if loaded is not groups:
        for own, new in zip(groups, loaded):
            if own is not new:
                own.clear()
                own.update(new)
        groups[:] = groups[: len(loaded)] + loaded[len(groups) :]
        optimizer.param_groups = groups
    if optimizer.state is not state and isinstance(state, dict) and isinstance(optimizer.state, dict):
        values = dict(optimizer.state)
        state.clear()
        state.update(values)
        optimizer.state = state


@contextlib.contextmanager
def keeping_groups(optimizer):
    """A context in which load_state_dict changes the optimizer's groups in place."""
    groups, state = optimizer.param_groups, optimizer.state
    yield
    put_back(optimizer, groups, state)


# ---- States as objects and tensors ----------------------------------------------------------------------------------


class _Place:
    """The place of a tensor in a state that is sent as an object. The tensor is broadcast separately."""

    def __init__(self, number, tensor):
        self.number = number
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device_type = tensor.device.type

    def empty_like_self(self, optimizer):
        """Memory for the tensor, on the device of the optimizer's parameters if that has the type of the root's device.

        The tensors of one broadcast are all on the CPU, or all on devices.
        """
        own = (parameter.device for group in optimizer.param_groups for parameter in group["params"])
        device = next((one for one in own if one.type == self.device_type), self.device_type)
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class _Sealed:
    """A value that load_state_dict does not inspect: it cannot copy named tuples."""

    def __init__(self, value):
        self.value = value


def _is_named_tuple(thing):
    return isinstance(thing, tuple) and hasattr(thing, "_make")


def _mapped(thing, change):
    """A copy of nested dicts, lists and tuples with the values that `change` returns.

    Values that it returns unchanged stay.
    """
    changed = change(thing)
    if changed is not thing:
        return changed
    if isinstance(thing, dict):
        return {key: _mapped(value, change) for key, value in thing.items()}
    if _is_named_tuple(thing):
        return thing._make(_mapped(value, change) for value in thing)
    if isinstance(thing, (list, tuple)):
        return type(thing)(_mapped(value, change) for value in thing)
    return thing


def _without_tensors(state):
    """The state with a place for each tensor, and the tensors."""
    tensors = []

    def take_out(thing):
        if not isinstance(thing, torch.Tensor):
            return thing
        tensors.append(thing)
        return _Place(len(tensors) - 1, thing)

    return _mapped(state, take_out), tensors


def _places(skeleton):
    found = []

    def find(thing):
        if isinstance(thing, _Place):
            found.append(thing)
        return thing

    _mapped(skeleton, find)
    return sorted(found, key=lambda place: place.number)


def _with_tensors(skeleton, tensors):
    filled = _mapped(skeleton, lambda thing: tensors[thing.number] if isinstance(thing, _Place) else thing)
    return {
        **filled,
        "state": _mapped(filled["state"], lambda thing: _Sealed(thing) if _is_named_tuple(thing) else thing),
    }


def _unseal(state):
    for key, value in list(state.items()):
        state[key] = _mapped(value, lambda thing: thing.value if isinstance(thing, _Sealed) else thing)


# ---- Broadcast ------------------------------------------------------------------------------------------------------


def broadcast_optimizer_state(optimizer, root_rank, model=None):
    """Gives all ranks the optimizer state and options of rank `root_rank` of the world, in place.

    No optimizer is stepped: ranks without a state build it from the root's, and the root's own state is only read. On a
    rank whose optimizer has no state yet, parameters that require gradients and have none get zero gradients. The
    optimizer keeps its groups, so schedulers that were created for it stay valid. `model` is ignored. An error on one
    rank is raised on all: ValueError for LBFGS, and for optimizers with different groups.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    group = global_process_set.group("broadcast_optimizer_state")
    root = global_process_set.root(root_rank, "broadcast_optimizer_state")
    had_no_state = not optimizer.state
    try:
        _broadcast(optimizer, root, root_rank, group)
    except errors.Error as error:
        raise errors.as_horovod(error) from None
    if had_no_state:
        _add_zero_gradients(optimizer)


def _add_zero_gradients(optimizer):
    """Programs written for Horovod may read the gradients that its step with zero gradients leaves."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)


def _broadcast(optimizer, root, root_rank, group):
    group.member().check_trust()
    is_root = group.rank == root
    data, tensors, skeleton = None, [], None
    with _Agreed(group, "state") as agreed:
        if is_root:
            skeleton, tensors = _without_tensors(optimizer.state_dict())
            tensors = [tensor.detach().contiguous() for tensor in tensors]
            data = objects.dumps(skeleton)
    agreed.check()
    data = objects.broadcast_bytes(data, root, "broadcast.optimizer_state", group)
    with _Agreed(group, "values") as agreed:
        if not is_root:
            skeleton = pickle.loads(data)
            tensors = [place.empty_like_self(optimizer) for place in _places(skeleton)]
    agreed.check()
    handles = [
        (ops.broadcast_async if is_root else ops.broadcast_async_)(tensor, root_rank, f"optimizer_state.{number}")
        for number, tensor in enumerate(tensors)
    ]
    ops.synchronize_all(handles)
    with _Agreed(group, "loading") as agreed:
        if not is_root:
            with keeping_groups(optimizer):
                optimizer.load_state_dict(_with_tensors(skeleton, tensors))
            _unseal(optimizer.state)
    agreed.check()


class _Agreed:
    """A context around work that may fail on one rank. check() then raises the same ValueError on all ranks."""

    def __init__(self, group, part):
        self.group = group
        self.name = f"broadcast.optimizer_state.{part}"
        self.text = ""
        self.cause = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, Exception):
            self.text = f"{kind.__name__}: {error}"
            self.cause = error
            return True
        return False

    def check(self):
        texts = objects.allgather_bytes(self.text.encode(), self.name, self.group)
        failed = [(rank, text.decode()) for rank, text in enumerate(texts) if text]
        if failed:
            rank, text = failed[0]
            raise errors.also(errors.InvalidArgumentError, ValueError)(
                f"broadcast_optimizer_state: failed on rank {rank} ({text}); the states of the ranks may "
                "differ: give all ranks optimizers with the same groups of parameters"
            ) from self.cause
