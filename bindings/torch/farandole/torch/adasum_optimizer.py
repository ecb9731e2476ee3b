"""DistributedOptimizer with op=Adasum: each rank steps with its own gradients, and the steps are combined."""

import torch

from ..basics import Adasum, Max
from . import gradient_agreement, ops
from .gradient_hooks import GradientHooks


class Deltas(GradientHooks):
    """Replaces the change that a step makes on this rank by the Adasum combination of all ranks' changes."""

    def __init__(self, names, compression, passes, process_set):
        super().__init__(names, passes, process_set)
        self.compression = compression
        self.agreed_on_overflow = False
        self.is_active = True
        self.world = None  # the group whose ranks have compared their parameters
        self.ordered = []  # parameters in the order of all ranks
        self.check_free(names)
        self.watch(names)

    def add(self, parameters):
        self.watch(parameters)
        self.world = None

    def start_over(self):
        self.agreed_on_overflow = False
        super().start_over()

    def abandon(self):
        self.start_over()
        return []

    def is_in_flight(self):
        return False

    def _on_gradient(self, parameter):
        self.count_pass(parameter)
        self.agreed_on_overflow = False

    @torch.no_grad()
    def before_scaler(self):
        """Gradients stay local here, so those of one rank may overflow alone. No rank may step then."""
        if self.agreed_on_overflow:
            return
        self.agreed_on_overflow = True
        gradients = [parameter.grad for parameter in self.passes_left if parameter.grad is not None]
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        finite = [torch.isfinite(one).all().to(values[0].device) for one in values]
        mine = bool(finite) and not bool(torch.stack(finite).all())  # on a device the host waits here, once
        anywhere = bool(ops.allreduce_(torch.tensor([float(mine)]), name="DistributedOptimizer.overflow", op=Max))
        if anywhere and not mine and values:
            values[0].fill_(float("inf"))

    def _with_gradient_anywhere(self):
        """The parameters that the step of any rank changes. All ranks omit the others from the reduction."""
        self.adopt_new_parameters()
        group = self.process_set.group("DistributedOptimizer")
        if self.world is not group:
            self.ordered = sorted(self.hooks, key=self.names.get)
            gradient_agreement.check_parameters(
                [self.names[parameter] for parameter in self.ordered], 1, self.process_set
            )
            self.world = group
        codes = [int(parameter.grad is not None) for parameter in self.ordered]
        totals = gradient_agreement.totals_of(codes, self.process_set)
        return [parameter for parameter, total in zip(self.ordered, totals) if total]

    def step(self, step):
        self.check_hooks("step")
        parameters = self._with_gradient_anywhere()
        before = [parameter.detach().clone() for parameter in parameters]
        result = step()
        with torch.no_grad():
            deltas = [parameter.detach() - old for parameter, old in zip(parameters, before)]
            small = [self.compression.compress(delta) for delta in deltas]
            buffers = [delta.contiguous() for delta, _ in small]
            names = [f"adasum.{self.names[parameter]}" for parameter in parameters]
            group = self.process_set.group("DistributedOptimizer")
            reduced = ops.synchronize(ops.submit_allreduce(buffers, buffers, names, group, Adasum)) if buffers else []
            for parameter, old, delta, (_, ctx) in zip(parameters, before, reduced, small):
                parameter.copy_(old + self.compression.decompress(delta, ctx))
        self.start_over()
        return result


class DistributedAdasum:
    """The methods of the new class that differ from those for other reductions."""

    def synchronize(self):
        """Does nothing: gradients stay on their ranks."""

    def skip_synchronize(self):
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure=None):
        self._wrapped_optimizer._opt_called = True
        return self._communication.step(lambda: self._base_class.step(self, closure))

    step.hooked = True

    def zero_grad(self, set_to_none=True):
        self._communication.start_over()
        return self._base_class.zero_grad(self, set_to_none=set_to_none)
