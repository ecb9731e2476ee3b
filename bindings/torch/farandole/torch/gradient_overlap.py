"""Reductions that continue while the next forward pass runs: overlap_forward of DistributedOptimizer.

The gradient that the next forward pass needs first arrives last in backward. It overtakes the others: each bucket has a
priority above those before it, and a large gradient is reduced in parts, between which others may pass.
"""

import sys
import warnings
import weakref

from .. import core
from . import deferred_tensors, gradient_buckets
from .deferred_step import DeferredStep, has_step_hooks
from .gradient_reduction import GradientReductions

_PRIORITY = 1 << 20  # added to those of buckets, because only operations above 0 overtake
_PRIORITY_OF_PRESENCE = 1 << 30  # step() waits for it

_instances = weakref.WeakSet()


def _finish_all():
    """Called before a world ends: the parameters are those of the last step afterwards."""
    for reductions in list(_instances):
        try:
            reductions.finish_step()
        except Exception as error:
            warnings.warn(
                "DistributedOptimizer: with overlap_forward the last step has not changed all parameters, because the "
                f"world ended before the gradients were reduced: {error}",
                RuntimeWarning,
                stacklevel=2,
            )


core.on_shutdown(_finish_all)


class OverlappedReductions(GradientReductions):
    """Defers the updates of a step until the next forward pass reads the parameters.

    Only steps are deferred in which all ranks have the expected gradients. Their reductions are then in flight on all
    ranks, so no rank has anything left to do for the others.
    """

    presence_priority = _PRIORITY_OF_PRESENCE

    def __init__(self, *arguments):
        self._deferred = None  # the last step, if updates of it are open
        self._has_warned = False
        self._stepping = None  # the step that synchronize() may defer
        super().__init__(*arguments)
        _instances.add(self)

    def _priority_of(self, bucket):
        return bucket.priority + _PRIORITY

    def _part_bytes_of(self, bucket):
        return gradient_buckets.BUCKET_BYTES if bucket.has_known_shapes else 0

    def _on_gradient(self, parameter):
        if deferred_tensors.is_deferred(parameter):
            step, self._deferred = self._deferred, None
            step.drop()
            raise AssertionError(
                f"DistributedOptimizer, overlap_forward: the gradient of {self.names[parameter]} belongs to values "
                "from before the last step, because code in C++ (TorchScript, an extension) has read the parameter in "
                "the forward pass. Call optimizer.finish_step() before that forward pass, or leave overlap_forward out."
            )
        super()._on_gradient(parameter)

    def step(self, optimizer, base_class):
        """Waits for what cannot be deferred, and steps. Returns False if everything is reduced and no step was made."""
        step = DeferredStep(optimizer, base_class, self._check_spoiled)
        self._stepping = None if has_step_hooks(optimizer) or self._is_compiled() else step
        try:
            self.synchronize()
        except BaseException:
            step.drop()
            raise
        finally:
            self._stepping = None
        if not step.is_open():
            return False
        self._deferred = step
        step.update_others()
        return True

    def _finish(self, is_ordinary=False):
        if is_ordinary and self._stepping is not None:
            for bucket in self.buckets:
                parameters = [one for one in bucket.parameters if self.expected[one]]
                is_intact = bucket.is_shared or not any(map(self._was_changed, parameters))
                if bucket.in_flight and is_intact and self._stepping.accepts(parameters):
                    self._stepping.add(parameters, bucket.in_flight)
                    bucket.in_flight = []
        super()._finish(is_ordinary)

    def _is_compiled(self):
        """Whether the program uses torch.compile. A compiled forward pass reads all parameters at its begin."""
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or not dynamo.utils.counters["frames"].get("total"):
            return False
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "DistributedOptimizer: overlap_forward has no effect in a program that uses torch.compile, because a "
                "compiled function reads all its parameters before it begins; leave overlap_forward out",
                stacklevel=4,
            )
        return True

    def _was_changed(self, parameter):
        """Whether the program has changed the gradient since backward, so that step() must raise the error.

        The views of a shared bucket have one version in common. Their error is raised when the update takes place.
        """
        gradient, version = self.ready.get(parameter, (None, 0))
        return parameter.grad is not gradient or (gradient is not None and gradient._version != version)

    def _check_spoiled(self):
        spoiled, self.spoiled = self.spoiled, []
        if spoiled:
            raise AssertionError(self._spoiled_text(spoiled))

    def finish_step(self):
        step, self._deferred = self._deferred, None
        if step is not None:
            step.finish()
            self._take_bounds()

    def abandon_step(self):
        """Drops the open updates. Returns the handles of their reductions."""
        step, self._deferred = self._deferred, None
        return [] if step is None else step.abandon()

    def abandon(self):
        return self.abandon_step() + super().abandon()
