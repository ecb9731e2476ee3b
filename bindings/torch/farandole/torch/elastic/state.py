"""TorchState: models, optimizers, samplers and plain values that all ranks have alike at each commit."""

import contextlib
import copy

import torch

from ...elastic import ObjectState
from ...errors import HorovodInternalError
from .. import ops
from ..state import broadcast_object, broadcast_optimizer_state, broadcast_parameters
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


class SamplerStateHandler(StateHandler):
    def sync(self):
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, "elastic.sampler"))
        self.save()

    def reset(self):
        self.value.reset()


_registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (torch.nn.Module, ModelStateHandler),
]


def get_handler_registry():
    """[(class, handler class)]: the first whose class a value has handles it; others are plain values."""
    return _registry


def set_handler_registry(registry):
    global _registry
    _registry = registry


def _handler_of(value):
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """A model, its optimizer and whatever else has a handler or can be pickled: TorchState(model, optimizer, epoch=0).

    Each is an attribute. Assigning another model, optimizer or sampler saves that one.
    """

    def __init__(self, model=None, optimizer=None, **attributes):
        given = dict(model=model, optimizer=optimizer, **attributes)
        handlers, plain = {}, {}
        for name, value in given.items():
            handler = _handler_of(value) if value is not None else None
            if handler is not None:
                handlers[name] = handler
            elif value is not None or name in attributes:
                plain[name] = value
        object.__setattr__(self, "_handlers", handlers)
        super().__init__(**{name: value for name, value in plain.items()})

    def __getattr__(self, name):
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            return handlers[name].value
        if name in ("model", "optimizer"):
            return None
        raise AttributeError(f"this state has no '{name}'")

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_handlers", {}):
            self._handlers[name].set_value(value)
        else:
            super().__setattr__(name, value)

    def save(self):
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self):
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self):
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self):
        for handler in self._handlers.values():
            handler.reset()
