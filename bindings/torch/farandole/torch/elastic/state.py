"""TorchState: models, optimizers, schedulers, samplers and values that all ranks have in common at a commit."""

import collections
import contextlib
import copy

import torch

from ... import basics
from ...elastic import ObjectState
from ...errors import HorovodInternalError, MismatchError
from .. import ops
from ..state import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .sampler import ElasticSampler


class StateHandler:
    """Saves, restores and synchronises one value of a state. Subclasses define sync()."""

    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        """Saves a copy of the value's state_dict()."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        """Restores the copy of the last save()."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self):
        """Gives all ranks the value of rank 0."""
        raise NotImplementedError

    def reset(self):
        """Called after a new world is formed."""

    def abandon(self):
        """Called before a restore: drops what is in flight."""

    def finish_step(self):
        """Called before the world may change: completes what is in flight."""

    def set_value(self, value):
        """Replaces the value and saves it."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handles a module through broadcast_parameters."""

    def sync(self):
        broadcast_parameters(self.value.state_dict(), 0)
        self.save()


class OptimizerStateHandler(StateHandler):
    """Handles an optimizer, and drops the reductions of a DistributedOptimizer that a failure interrupted."""

    def __init__(self, value):
        self._abandoned = []  # reductions that were in flight when the world failed
        super().__init__(value)

    def abandon(self):
        communication = getattr(self.value, "_communication", None)  # a DistributedOptimizer's
        if communication is not None:
            self._abandoned += communication.abandon()

    def finish_step(self):
        communication = getattr(self.value, "_communication", None)
        if communication is not None:
            communication.finish_step()

    def restore(self):
        self.abandon()
        super().restore()

    def sync(self):
        broadcast_optimizer_state(self.value, 0)
        self.save()

    def reset(self):
        self.abandon()
        for handle in self._abandoned:
            with contextlib.suppress(HorovodInternalError):
                handle() if callable(handle) else ops.synchronize(handle)
        self._abandoned.clear()


class StateDictHandler(StateHandler):
    """Handles every value with state_dict and load_state_dict, such as a learning rate scheduler or a gradient scaler.

    The value itself stays, and so do the references from and to it.
    """

    def sync(self):
        is_root = basics.rank() == 0
        state = broadcast_object(_on_cpu(self.value.state_dict()) if is_root else None, 0, "elastic.state_dict")
        if not is_root:
            self.value.load_state_dict(state)
        self.save()


class SamplerStateHandler(StateDictHandler):
    """Handles an ElasticSampler, which is reset after each change."""

    def sync(self):
        was_iterated = broadcast_object(self.value._was_iterated, 0, "elastic.sampler")
        super().sync()
        self.value.reset()
        self.value._was_iterated = was_iterated  # of rank 0, so that the next set_epoch() does the same on all ranks

    def reset(self):
        self.value.reset()


def _on_cpu(state):
    """The same containers with copies on the CPU of tensors on devices, because another rank may lack the device."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if type(state) in (dict, collections.OrderedDict):
        return type(state)((key, _on_cpu(value)) for key, value in state.items())
    if type(state) in (list, tuple):
        return type(state)(map(_on_cpu, state))
    return state


_registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
]


def get_handler_registry():
    """[(class, handler class)]. The first entry whose class the value is an instance of handles it.

    Other values with state_dict and load_state_dict get a StateDictHandler; the rest are plain values.
    """
    return _registry


def set_handler_registry(registry):
    """Replaces the registry."""
    global _registry
    _registry = registry


def _handler_kind(value):
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return StateDictHandler if not isinstance(value, type) and all(map(callable, methods)) else None


class TorchState(ObjectState):
    """A model, its optimizer, and other values: TorchState(model, optimizer, scheduler=scheduler, epoch=0).

    Values with state_dict and load_state_dict are saved, restored and synchronised through these. Other values are
    copied and pickled, as by ObjectState. Each is an attribute, and attributes that are assigned later are state too.
    Assigning another model, optimizer, scheduler or sampler saves the new one.
    """

    def __init__(self, model=None, optimizer=None, **attributes):
        object.__setattr__(self, "_handlers", {})
        given = {name: value for name, value in (("model", model), ("optimizer", optimizer)) if value is not None}
        super().__init__(**given, **attributes)

    def __getattr__(self, name):
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            return handlers[name].value
        if name in ("model", "optimizer"):
            return None
        raise AttributeError(f"this state has no '{name}'")

    def __setattr__(self, name, value):
        kind = _handler_kind(value) if self._is_state(name) else None
        known = self.__dict__.get("_handlers", {}).get(name)
        if kind is None:
            super().__setattr__(name, value)
            self._handlers.pop(name, None)
        elif type(known) is kind:
            known.set_value(value)
        else:
            self._handlers[name] = kind(value)
            if name in self.__dict__:  # it was a plain value
                super().__delattr__(name)

    def __delattr__(self, name):
        if self._handlers.pop(name, None) is None:
            super().__delattr__(name)

    def save(self):
        """Saves all values in memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self):
        """Restores the values of the last save()."""
        for handler in self._handlers.values():
            handler.abandon()  # before a model is loaded that an optimizer would still update
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def check_host_updates(self):
        for handler in self._handlers.values():
            handler.finish_step()
        super().check_host_updates()

    def sync(self):
        """Gives all ranks the values of rank 0. MismatchError if ranks have different attributes with a state_dict."""
        for name in self._agreed_names():
            self._handlers[name].sync()
        super().sync()

    def _agreed_names(self):
        """The names of the handlers in rank 0's order.

        Each handler runs collectives, so all ranks must have the same: MismatchError on all ranks if one differs.
        """
        of_rank = allgather_object(list(self._handlers), "elastic.handlers")
        for rank, names in enumerate(of_rank):
            differing = sorted(set(names) ^ set(of_rank[0]))
            if differing:
                raise MismatchError(
                    f"TorchState: rank 0 and rank {rank} differ in which attributes are models, optimizers or others "
                    f"with a state_dict: {', '.join(differing)}; give them to TorchState, or assign them before the "
                    "elastic function is called"
                )
        return of_rank[0]

    def reset(self):
        """Resets all handlers after a new world is formed."""
        for handler in self._handlers.values():
            handler.reset()
