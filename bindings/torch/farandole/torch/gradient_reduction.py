"""The reductions of a DistributedOptimizer: they start in backward, and synchronize() waits for them.

The first step of a world reduces nothing in backward. At its end ranks compare their parameters (see
gradient_agreement). From then on the reduction of a bucket starts as soon as all its expected gradients are complete. A
gradient is expected if any rank had one in the step before. synchronize() decides, equally on all ranks, on everything
that backward has not submitted.
"""

import torch

from ..basics import Average, Sum
from ..elastic_client import is_elastic
from . import gradient_agreement, gradient_buckets, ops
from .gradient_agreement import (
    DENSE,
    NONE,
    Presence,
    code_made_dense,
    code_of,
    is_mixed,
    is_sparse,
    returned_dimensions,
)
from .gradient_launch import LaunchedGradients, zeros_for


class GradientReductions(LaunchedGradients):
    """Decides in each step which gradients are reduced, together with the other ranks."""

    presence_priority = 0  # above those of buckets

    def __init__(self, names, compression, passes, op, predivide, groups, sparse_as_dense, process_set,
                 shared):  # fmt: skip
        super().__init__(names, compression, passes, op, predivide, groups, process_set, shared)
        self.sparse_as_dense = sparse_as_dense
        self.made_dense = {}  # {parameter: sparse dimensions} of this step's gradients that were sparse
        if process_set.included() is None:
            process_set.group("DistributedOptimizer")  # raises the error
        # An elastic job of one rank may have more ranks later.
        self.is_active = process_set.included() and (process_set.size() > 1 or is_elastic())
        self.synchronized = False
        self.synchronized_for_scaler = False
        self.should_synchronize = True
        self.named_in = None  # the group in which `sent_names` were numbered
        self.presence = None
        self.awaited = 0  # the number of gradients that this rank expects
        self.deviates = False  # a gradient differs from the expected code
        self.refusals = []  # the reasons why gradients cannot be reduced
        self.has_reported = False  # an error about excess backward passes has been raised
        if self.is_active:
            self._watch_all(groups)

    # ---- During backward ----

    def _on_gradient(self, parameter):
        try:
            left = self.count_pass(parameter)
        except AssertionError:
            self.has_reported = True
            raise
        self.synchronized = self.synchronized_for_scaler = False
        gradient = self._dense_if_configured(parameter)
        bucket = self.bucket_of.get(parameter)
        expected = self.expected.get(parameter, DENSE)
        if bucket is not None:
            if bucket.is_shared and expected and not gradient.is_sparse:
                gradient = self._taken_in(parameter, bucket)
                bucket = self.bucket_of[parameter]
            if parameter.is_cuda and len(bucket.parameters) > 1:
                bucket.streams.append(torch.cuda.current_stream(parameter.device))
        if left:
            return
        self.ready[parameter] = gradient, gradient._version
        if self.world is None or self.world is not self.process_set._group or parameter not in self.expected:
            return  # synchronize() reduces it
        if self._code_of(parameter, gradient) != expected:
            self.deviates = True
            return
        bucket.waiting -= 1
        if bucket.waiting == 0 and self._is_allowed(bucket):
            self._launch(bucket, bucket.parameters)
        if len(self.ready) == self.awaited == len(self.expected) and not self.deviates:
            self.presence.submit(self.world, priority=self.presence_priority)

    def _is_allowed(self, bucket):
        """Whether the bucket can be reduced. If not, synchronize() raises the error on all ranks."""
        return not any(is_sparse(self.expected[parameter]) and self._refusal(bucket) for parameter in bucket.parameters)

    def _dense_if_configured(self, parameter):
        gradient = parameter.grad
        if self.sparse_as_dense and gradient is not None and gradient.is_sparse:
            self.made_dense[parameter] = gradient.sparse_dim()
            parameter.grad = gradient = gradient.to_dense()
        return gradient

    def _code_of(self, parameter, gradient):
        made_dense = gradient is not None and not gradient.is_sparse and parameter in self.made_dense
        return code_made_dense(self.made_dense[parameter]) if made_dense else code_of(gradient)

    def _return_sparse(self, totals):
        """Makes gradients sparse again that were sparse on all ranks that had them, as SparseAdam needs them.

        The decision follows from `totals`, so all ranks get the same form, also those that had no gradient.
        """
        for parameter, total in totals.items():
            dimensions = returned_dimensions(total)
            if dimensions and parameter.grad is not None and not parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_sparse(dimensions)

    def _taken_in(self, parameter, bucket):
        if not bucket.fits():
            bucket = self._replace(bucket)[parameter]
        if bucket.is_shared and not bucket.moves_together:
            bucket.take_in([parameter])
        return parameter.grad

    # ---- At the step ----

    def synchronize(self):
        """Waits for all reductions.

        If another rank has a gradient that this rank lacks, this rank contributes zeros. If no rank has it, it stays as
        it is.
        """
        self.check_hooks("synchronize")
        if self.is_active:
            try:
                self._complete()
            finally:
                spoiled = [] if self.has_reported else self.spoiled
                self.start_over()
            if spoiled:
                raise AssertionError(self._spoiled_text(spoiled))
        self.synchronized = True

    def _complete(self):
        group = self.process_set.group("DistributedOptimizer")
        for bucket in [one for one in self.buckets if one.is_shared and not one.is_launched and not one.fits()]:
            self._replace(bucket)
        known = self.expected if self.world is group else {}
        if known:
            self._complete_known(group)
        self.adopt_new_parameters()
        if self.world is not group or self.has_new_parameters:
            self._complete_first(group, known)
        if self.refusals:
            raise ValueError("; ".join(self.refusals))

    def _complete_known(self, group):
        """Completes a step in which ranks know each other's parameters."""
        if self.presence.handle is None:
            is_ordinary = len(self.ready) == self.awaited and not self.deviates and not self._unnoticed()
            codes = None if is_ordinary else self._codes()
            self.presence.submit(group, codes, self.presence_priority)
        totals = self.presence.wait()
        if totals is None:
            totals = self.expected
            self._finish(is_ordinary=True)
        else:
            totals = dict(zip(self.expected, totals))
            self._decide(totals)
            self._expect(totals)
            self._finish()
        self._return_sparse(totals)

    def _complete_first(self, group, known):
        """Completes the first step of a world, or of added parameters.

        `known`: {parameter: expected code} of the parameters whose step is complete.
        """
        totals = self._meet(group, known)
        self._decide(totals)
        self._expect({**totals, **{parameter: self.expected[parameter] for parameter in known}})
        self._finish()
        self._return_sparse(totals)
        for bucket in self.buckets:
            bucket.has_known_shapes = True

    def _unnoticed(self):
        """Whether there is an unexpected gradient that no hook has reported: one that the program has set."""
        return any(expected == NONE and self._has_gradient(parameter) for parameter, expected in self.expected.items())

    def _has_gradient(self, parameter):
        """Whether the parameter has a gradient.

        The gradient of a frozen parameter may be an old one and does not count.
        """
        return parameter.grad is not None and (parameter in self.ready or parameter.requires_grad)

    def _codes(self):
        self.spoiled += [parameter for parameter in self.ready if parameter.grad is None]
        return [
            self._code_of(parameter, self._dense_if_configured(parameter)) if self._has_gradient(parameter) else NONE
            for parameter in self.expected
        ]

    def _meet(self, group, known):
        """Compares parameters with the other ranks and chooses buckets.

        Returns the totals of the unknown parameters.
        """
        if self.named_in is not group:
            self.sent_names.clear()
            self.named_in = group
        ordered = sorted(self.hooks, key=self.names.get)
        names = [self.names[parameter] for parameter in ordered]
        self.number_names(gradient_agreement.check_parameters(names, self.next_number(), self.process_set))
        self.expected = dict.fromkeys(ordered, DENSE)
        codes = [NONE if parameter in known else code for parameter, code in zip(ordered, self._codes())]
        orders = [gradient_buckets.memory_order(parameter) for parameter in ordered]
        layouts = [gradient_buckets.code_of_order(order) for order in orders]
        places = self._places_of_first_backward()
        totals, places, alike = gradient_agreement.exchange(
            codes, [places[parameter] for parameter in ordered], layouts, self.process_set
        )
        self.order_of = {one: order for one, order, same in zip(ordered, orders, alike) if same and order is not None}
        unlike = {parameter for parameter, same in zip(ordered, alike) if not same}
        totals = dict(zip(ordered, totals))
        self._resolve(totals)
        self._expect({**totals, **known})
        if self.chooses_buckets:
            place_of = dict(zip(ordered, places))
            self._choose_buckets(sorted(ordered, key=place_of.get))
        for bucket in self.buckets:
            if bucket.is_shared and unlike.intersection(bucket.parameters):
                for parameter in bucket.parameters:
                    bucket.release(parameter)
                bucket.lay_out(unlike)
        self.world, self.has_new_parameters = group, False
        return totals

    def _places_of_first_backward(self):
        """{parameter: its place in the order of arrival}. Parameters without a gradient follow, the last first."""
        came = list(self.ready)
        came += [parameter for parameter in reversed(self.hooks) if parameter not in self.ready]
        return {parameter: place for place, parameter in enumerate(came)}

    def _expect(self, totals):
        """Sets the expected codes of the next step, or of this one if it is the first. They are equal on all ranks."""
        self.expected = {parameter: gradient_agreement.expected_next(total) for parameter, total in totals.items()}
        self.awaited = sum(1 for code in self.expected.values() if code)
        codes = list(self.expected.values())
        if self.presence is None or self.presence.expected != codes:
            self.presence = Presence(self.sent_names[next(iter(self.expected))] if self.expected else "", codes)

    def _resolve(self, totals):
        """Makes a gradient dense that is sparse on some ranks only.

        A sparse gradient that cannot be reduced is left out, and its error is raised after the others are complete.
        """
        for parameter, total in totals.items():
            if not is_sparse(total):
                continue
            bucket = self.bucket_of.get(parameter)
            if is_mixed(total):
                if not is_sparse(self.expected[parameter]):
                    self._make_dense(parameter)
                    totals[parameter] = DENSE
            elif bucket is not None and self._refusal(bucket):
                self.refusals.append(
                    f"DistributedOptimizer, gradient of {self.names[parameter]}: {self._refusal(bucket)}"
                )
                totals[parameter] = NONE

    def _make_dense(self, parameter):
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
            self.ready.pop(parameter, None)

    def _decide(self, totals):
        """Submits the reductions that no rank has submitted in backward, and this rank's part of the others.

        All decisions follow from `totals` and from the expected codes, which are equal on all ranks.
        """
        self._resolve(totals)
        in_groups = [one for one in totals if len(self.bucket_of[one].parameters) > 1]
        self._set_apart([one for one in in_groups if is_sparse(totals[one])])
        for parameter in [one for one, total in totals.items() if is_mixed(total)]:
            self._launch_mixed(self.bucket_of[parameter], parameter, totals[parameter])
        for bucket in self.buckets:
            came = [parameter for parameter in bucket.parameters if totals.get(parameter)]
            expected = [parameter for parameter in came if self.expected[parameter]]
            if not bucket.is_launched:
                for parameter in bucket.parameters if bucket.is_shared else ():
                    if not totals.get(parameter):
                        bucket.clear(parameter)
                if expected:
                    self._launch_with_zeros(bucket, expected, totals)
            unexpected = [parameter for parameter in came if not self.expected[parameter]]
            if unexpected:
                self._launch_with_zeros(bucket, unexpected, totals)

    def _launch_with_zeros(self, bucket, parameters, totals):
        for parameter in parameters:
            if not self._has_gradient(parameter):
                parameter.grad = zeros_for(parameter, totals[parameter])
        self._launch(bucket, parameters)

    def start_over(self):
        super().start_over()
        for bucket in self.buckets:
            bucket.start_over(self.expected)
        self.ready.clear()
        self.made_dense.clear()
        self.spoiled, self.refusals = [], []
        self.deviates = self.has_reported = False

    def abandon(self):
        """Drops the reductions in flight. Returns their handles, or functions that wait for them."""
        handles = [wait for bucket in self.buckets for wait, _ in bucket.in_flight]
        if self.presence is not None and self.presence.handle is not None:
            handles.append(self.presence.handle)
        if handles:
            self.presence = self.world = None
        self.start_over()
        return handles

    def is_in_flight(self):
        return bool(self.ready)

    def before_scaler(self):
        if not self.synchronized:
            self.synchronize()
        self.synchronized_for_scaler = True

    def same_loss(self, loss):
        """The loss over all ranks. An optimizer that reads it must decide equally on all ranks."""
        if not self.is_active or loss is None:
            return loss
        tensor = torch.as_tensor(loss).detach().clone()
        op = self.op if self.op in (Average, Sum) else Average
        return ops.allreduce_(tensor, name="DistributedOptimizer.loss", op=op, process_set=self.process_set)
