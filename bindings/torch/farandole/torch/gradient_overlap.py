"""Reductions that continue while the next forward pass runs: overlap_forward of DistributedOptimizer.

The gradient that the next forward pass needs first arrives last in backward. It overtakes the others: each bucket has a
priority above those before it, and a large gradient is reduced in parts, between which others may pass.
"""

import os
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
    """Called before a world ends or a process forks: the parameters are those of the last step afterwards."""
    for reductions in list(_instances):
        _finish_quietly(reductions)


def _finish_quietly(reductions):
    try:
        reductions.finish_step()
    except Exception as error:
        warnings.warn(
            "DistributedOptimizer: with overlap_forward the last step has not changed all parameters, because the "
            f"gradients were not reduced: {error}",
            RuntimeWarning,
            stacklevel=3,
        )


core.on_shutdown(_finish_all)
os.register_at_fork(before=_finish_all)  # the child has no world to wait for


class OverlappedReductions(GradientReductions):
    """Defers the updates of a step until the next forward pass reads the parameters.

    Only steps are deferred in which all ranks have the expected gradients. Their reductions are then in flight on all
    ranks, so no rank has anything left to do for the others.
    """

    presence_priority = _PRIORITY_OF_PRESENCE
    defers_steps = True

    def __init__(self, *arguments):
        self._deferred = None  # the last step, if updates of it are open
        self._has_warned = False
        self._has_warned_of_alias = False
        self._stepping = None  # the step that synchronize() may defer
        super().__init__(*arguments)
        _instances.add(self)

    def _priority_of(self, bucket):
        return bucket.priority + _PRIORITY

    def _part_bytes_of(self, bucket):
        return gradient_buckets.BUCKET_BYTES if bucket.has_known_shapes else 0

    def watch_optimizer(self, optimizer, wrapped):
        """Completes the last step when a program that has dropped the optimizer goes on with the parameters.

        Also before the wrapped optimizer's state is read or replaced.
        """
        weakref.finalize(optimizer, _finish_quietly, self).atexit = False
        wrapped.register_state_dict_pre_hook(lambda _: self.finish_step())
        wrapped.register_load_state_dict_pre_hook(lambda *_: self.finish_step())

    def _on_gradient(self, parameter):
        if deferred_tensors.is_deferred(parameter):
            self.finish_step()  # raises if this gradient was added to one that is being reduced
            raise AssertionError(
                f"DistributedOptimizer, overlap_forward: the gradient of {self.names[parameter]} belongs to values "
                "from before the last step, because the forward pass ran before that step, or code in C++ (an "
                "extension) has read the parameter in it. Call optimizer.finish_step() before, or leave "
                "overlap_forward out."
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
                if bucket.in_flight and is_intact and self._can_defer(bucket, parameters):
                    self._stepping.add(parameters, bucket.in_flight)
                    bucket.in_flight = []
        super()._finish(is_ordinary)

    def _can_defer(self, bucket, parameters):
        return (
            self._stepping.accepts(parameters)
            and not any(map(self._has_alias, parameters))
            and (bucket.is_shared or not any(_is_part(parameter.grad) for parameter in parameters))
        )

    def _has_alias(self, parameter):
        if not deferred_tensors.has_alias(parameter):
            return False
        if not self._has_warned_of_alias:
            self._has_warned_of_alias = True
            warnings.warn(
                f"DistributedOptimizer: overlap_forward has no effect for {self.names[parameter]} and perhaps others, "
                "while another tensor or array uses the parameter's memory: one of an earlier state_dict() or "
                "detach(), or of another process. Copy it with clone(), or drop it before step().",
                stacklevel=6,
            )
        return True

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
            self._take_bounds(self.error_bound)

    def abandon_step(self):
        """Drops the open updates. Returns the handles of their reductions."""
        step, self._deferred = self._deferred, None
        return [] if step is None else step.abandon()

    def abandon(self):
        return self.abandon_step() + super().abandon()


def _is_part(gradient):
    """Whether the gradient is a part of a larger tensor, which the program may read."""
    return gradient.untyped_storage().nbytes() > gradient.nbytes
