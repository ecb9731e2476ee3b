"""The reduction of an optimizer's gradients: its options, and which gradients it covers."""

import numbers

import keras

from .. import elastic_client
from ..basics import Average, Sum
from ..frameworks.fit_optimizers import layers_of
from . import backend

_on = backend.module()


class Reduction:
    """The arguments of a DistributedOptimizer, and the reduction of its gradients."""

    def __init__(
        self, name, compression, op, predivide, process_set, passes_factor, groups, scale_local, sparse_as_dense
    ):
        self.name, self.compression, self.op, self.process_set = name, compression, op, process_set
        self.prescale, self.postscale, self.passes_factor = 1.0 / predivide, predivide * passes_factor, passes_factor
        self.groups, self.sparse_as_dense = groups, sparse_as_dense
        self.local, self.scale_local = None, scale_local  # the LocalVariables, if there are any

    def is_needed(self):
        """Whether gradients travel. ValueError before init(), because training alone would go unnoticed."""
        if self.process_set.included() is None:
            self.process_set.group("DistributedOptimizer")  # raises
        # The number of ranks of an elastic job changes, and a traced step stays.
        return self.process_set.included() and (self.process_set.size() > 1 or elastic_client.is_elastic())

    def fill_missing(self, gradients, variables, optimizer_name):
        """Makes gradients that are None zeros where other ranks have them, so that no rank waits for another."""
        if not self.is_needed():
            return gradients
        return _on.fill_missing(gradients, variables, self.name or optimizer_name, self.process_set)

    def reduce(self, gradients, variables, optimizer_name):
        """Returns the gradients with those of shared variables reduced, and those of local ones scaled.

        `variables` belong to the gradients; they are None where no variable is local.
        """
        gradients = list(gradients)
        here = [number for number, one in enumerate(gradients) if one is not None]
        local = [number for number in here if self.local.covers(variables[number])] if self.local else []
        shared = [number for number in here if number not in set(local)]
        for number, one in zip(shared, self._reduced([gradients[number] for number in shared], optimizer_name)):
            gradients[number] = one
        factor = self.passes_factor / (self.process_set.size() if self.local and self.local.scale else 1)
        for number in local:
            gradients[number] = _on.scaled(gradients[number], factor)
        return gradients

    def _reduced(self, gradients, optimizer_name):
        if not gradients or not self.is_needed():
            return [_on.scaled(one, self.passes_factor) for one in gradients]
        name = self.name or optimizer_name
        parts = min(self.groups, len(gradients))
        bounds = [len(gradients) * part // parts for part in range(parts + 1)]
        reduced = []
        for part, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            reduced += _on.reduce(self, gradients[begin:end], f"{name}.{part}")
        return reduced

    def only_when(self, condition, gradients, optimizer_name):
        """The reduced gradients of an update step. In other steps of an accumulation their values do not matter."""
        return _on.only_when(condition, lambda these: self.reduce(these, None, optimizer_name), list(gradients))


class LocalVariables:
    """The variables of layers that each rank trains for itself."""

    def __init__(self, layers, scale):
        self.layers, self.scale, self.variables = layers_of(layers, keras.Layer), scale, []

    def covers(self, variable):
        """Whether the variable belongs to a local layer. Layers may be built after this object was made."""
        own = [one for layer in self.layers for one in layer.trainable_variables]
        return any(variable is one for one in [*own, *self.variables])


def checked_options(op, predivide, passes, groups):
    """Returns the number of groups. ValueError for options that a DistributedOptimizer does not take."""
    if op not in (Average, Sum):
        raise ValueError("op: Keras's DistributedOptimizer takes Average or Sum")
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if not isinstance(passes, numbers.Integral) or passes < 1:
        raise ValueError(f"backward_passes_per_step={passes!r} must be a number of batches, 1 or more")
    if isinstance(groups, (list, tuple)):
        return 1  # one unit with all gradients keeps each list of variables together
    if groups is not None and (not isinstance(groups, numbers.Integral) or groups < 0):
        raise ValueError(f"groups={groups!r} must be a number of groups, or lists of variables")
    return int(groups or 1)
