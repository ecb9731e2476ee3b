"""DistributedOptimizer with op=Adasum: each rank steps with its own gradients, and the steps are combined."""

import torch

from ..basics import Adasum, Max
from . import ops


class Deltas:
    """What a step has changed on this rank becomes what Adasum makes of all ranks' changes."""

    def __init__(self, names, compression, passes, process_set):
        self.names = names
        self.compression = compression
        self.passes = passes
        self.passes_left = {}
        self.process_set = process_set
        self.agreed_on_overflow = False
        self.is_active = True
        self.hooks = []
        for parameter in names:
            if parameter.requires_grad:
                self.watch([parameter])

    def watch(self, parameters):
        for parameter in parameters:
            self.passes_left[parameter] = self.passes
            self.hooks.append(parameter.register_post_accumulate_grad_hook(self._gradient_is_there))

    def start_over(self):
        self.agreed_on_overflow = False
        for parameter in self.passes_left:
            self.passes_left[parameter] = self.passes

    def abandon(self):
        self.start_over()
        return []

    def is_in_flight(self):
        return False

    def _gradient_is_there(self, parameter):
        if self.passes_left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        self.agreed_on_overflow = False
        self.passes_left[parameter] -= 1

    @torch.no_grad()
    def before_scaler(self):
        """Gradients stay local here, so one rank's may overflow alone: then no rank may step, or the others would wait."""
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

    def step(self, step):
        parameters = list(self.passes_left)
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
    """What the new class has otherwise than with other reductions."""

    def synchronize(self):
        """Nothing to wait for: gradients stay on their ranks."""

    def skip_synchronize(self):
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure=None):
        self._wrapped_optimizer._opt_called = True
        return self._communication.step(lambda: self._base_class.step(self, closure))

    step.hooked = True

    def zero_grad(self, set_to_none=True):
        self._communication.start_over()
        return self._base_class.zero_grad(self, set_to_none=set_to_none)
