"""TorchState: models, optimizers, schedulers, samplers and plain values that all ranks have alike at each commit."""

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
    """How a value of one kind is saved, restored and synchronised."""

    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self):
        """Gives all ranks what rank 0 has."""
        raise NotImplementedError

    def reset(self):
        """The ranks have met anew."""

    def set_value(self, value):
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    def sync(self):
        broadcast_parameters(self.value.state_dict(), 0)
        self.save()


class OptimizerStateHandler(StateHandler):
    def __init__(self, value):
        self._abandoned = []  # gradients that were on their way when the world failed
        super().__init__(value)

    def restore(self):
        self._abandon()
        super().restore()

    def sync(self):
        broadcast_optimizer_state(self.value, 0)
        self.save()

    def reset(self):
        self._abandon()
        for handle in self._abandoned:
            with contextlib.suppress(HorovodInternalError):
                handle() if callable(handle) else ops.synchronize(handle)
        self._abandoned.clear()

    def _abandon(self):
        communication = getattr(self.value, "_communication", None)  # a DistributedOptimizer's
        if communication is not None:
            self._abandoned += communication.abandon()


class StateDictHandler(StateHandler):
    """For every value that has state_dict and load_state_dict: learning rate schedulers and gradient scalers, for
    example. The value itself stays, so what refers to it, and what it refers to, stays connected."""

    def sync(self):
        is_root = basics.rank() == 0
        state = broadcast_object(_on_cpu(self.value.state_dict()) if is_root else None, 0, "elastic.state_dict")
        if not is_root:
            self.value.load_state_dict(state)
        self.save()


class SamplerStateHandler(StateDictHandler):
    def sync(self):
        super().sync()
        self.value.reset()

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
    """[(class, handler class)]: the first whose class a value has handles it. Of the others, a value that has
    state_dict and load_state_dict gets a StateDictHandler, and the rest are plain values."""
    return _registry


def set_handler_registry(registry):
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

    A value that has state_dict and load_state_dict is saved, restored and synchronised by them; others are copied and
    pickled, as ObjectState does. Each is an attribute, and an attribute that is assigned later is state too. Assigning
    another model, optimizer, scheduler or sampler saves that one.
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
            if name in self.__dict__:  # until now a plain value
                super().__delattr__(name)

    def __delattr__(self, name):
        if self._handlers.pop(name, None) is None:
            super().__delattr__(name)

    def save(self):
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self):
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self):
        for name in self._agreed_names():
            self._handlers[name].sync()
        super().sync()

    def _agreed_names(self):
        """The names of the handlers in rank 0's order. Each of them runs collectives, so all ranks must have the same:
        MismatchError on all ranks where one differs."""
        of_rank = allgather_object(list(self._handlers), "elastic.handlers")
        for rank, names in enumerate(of_rank):
            differing = sorted(set(names) ^ set(of_rank[0]))
            if differing:
                raise MismatchError(
                    f"TorchState: rank 0 and rank {rank} differ in which attributes are models, optimizers or others "
                    "with a "
                    f"state_dict: {', '.join(differing)}; give them to TorchState, or assign them before the elastic "
                    "function "
                    "is called"
                )
        return of_rank[0]

    def reset(self):
        for handler in self._handlers.values():
            handler.reset()
