"""What a DistributedOptimizer adds to its optimizer: reductions that start in backward, and waiting for them.

The first step of a world reduces nothing in backward. At its end ranks compare their parameters (see gradient_agreement).
From then on the reduction of a bucket starts as soon as all its expected gradients are there. A gradient is expected if
any rank had one in the step before. What was not submitted in backward is decided at synchronize(), alike on all ranks.
"""

import torch

from ..basics import Average, Sum
from ..elastic_door import is_elastic
from . import gradient_agreement, gradient_buckets, ops
from .compression import Compression
from .gradient_agreement import DENSE, NONE, Presence, code_of, is_mixed, is_sparse
from .gradient_grouping import GroupedGradients
from .tensors import catch_up

class GradientReductions(GroupedGradients):
    def __init__(self, names, compression, passes, op, predivide, groups, sparse_as_dense, process_set,
                 shared):  # fmt: skip
        super().__init__(names, passes, op, groups, process_set, shared)
        if shared and compression is not Compression.none:
            raise ValueError("gradients_in_shared_memory takes no compression: gradients are reduced where they are")
        self.compression = compression
        self.prescale = 1.0 / predivide if op == Average else 1.0
        self.postscale = predivide if op == Average else 1.0
        self.sparse_as_dense = sparse_as_dense
        if process_set.included() is None:
            process_set.group("DistributedOptimizer")  # raises what is missing
        # An elastic job of one rank may have more of them later.
        self.is_active = process_set.included() and (process_set.size() > 1 or is_elastic())
        self.synchronized = False
        self.synchronized_for_scaler = False
        self.should_synchronize = True
        self.named_in = None  # the group in which `sent_names` were numbered
        self.presence = None
        self.awaited = 0  # how many gradients this rank expects
        self.deviates = False  # a gradient came that is not what is expected
        self.spoiled = []  # parameters whose gradients were changed while they were being reduced
        self.refusals = []  # why gradients that ranks have cannot be reduced
        self.has_reported = False  # a pass too many has changed gradients, and was an error
        self.order_of = {}  # {parameter: order of dimensions in which its elements travel}, where it is not the usual one
        if self.is_active:
            self._watch_all(groups)

    # ---- During backward ----

    def _gradient_is_there(self, parameter):
        try:
            left = self.count_pass(parameter)
        except AssertionError:
            self.has_reported = True
            raise
        self.synchronized = self.synchronized_for_scaler = False
        gradient = self._dense_if_asked(parameter)
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
        if (code_of(gradient) if gradient.is_sparse else DENSE) != expected:
            self.deviates = True
            return
        bucket.waiting -= 1
        if bucket.waiting == 0 and self._is_allowed(bucket):
            self._launch(bucket, bucket.parameters)
        if len(self.ready) == self.awaited == len(self.expected) and not self.deviates:
            self.presence.submit(self.world)

    def _is_allowed(self, bucket):
        """What cannot be done is found out at synchronize(), by all ranks together."""
        return not any(is_sparse(self.expected[parameter]) and self._refusal(bucket) for parameter in bucket.parameters)

    def _dense_if_asked(self, parameter):
        gradient = parameter.grad
        if self.sparse_as_dense and gradient is not None and gradient.is_sparse:
            parameter.grad = gradient = gradient.to_dense()
        return gradient

    def _taken_in(self, parameter, bucket):
        if not bucket.fits():
            bucket = self._replace(bucket)[parameter]
        if bucket.is_shared:
            bucket.take_in(parameter)
        return parameter.grad

    # ---- Reductions ----

    def _launch(self, bucket, parameters):
        """Starts the reduction of some of a bucket's gradients; those that it expects, or others that came."""
        if bucket.streams:  # autograd works where the forward pass did: a bucket's gradients may be on several
            catch_up(torch.cuda.current_stream(bucket.streams[-1].device), *bucket.streams)
        bucket.is_launched = True
        parameters = [parameter for parameter in parameters if self.expected[parameter]] or parameters
        if bucket.is_shared and self.expected[parameters[0]]:
            self._launch_in_place(bucket, parameters)
        elif parameters[0].grad.is_sparse:
            self._launch_sparse(bucket, parameters[0])
        else:
            self._launch_dense(bucket, parameters)

    def _submit(self, tensors, names, priority):
        return ops.submit_allreduce(tensors, tensors, names, self.world, self.op, self.prescale, self.postscale, priority)

    def _launch_dense(self, bucket, parameters):
        noted = [self._noted(parameter) for parameter in parameters]
        sent = [self._as_sent(parameter) for parameter in parameters]
        buffers = [buffer for buffer, _ in sent]
        names = [f"allreduce.{self.sent_names[parameter]}" for parameter in parameters]
        handle = self._submit(buffers, names, bucket.priority)

        def finish():
            for parameter, (gradient, version), (buffer, ctx) in zip(parameters, noted, sent):
                if parameter.grad is not gradient or gradient._version != version:
                    self.spoiled.append(parameter)
                elif buffer is not gradient:
                    self._put_back(parameter, buffer, ctx)

        bucket.in_flight.append((handle, finish))

    def _noted(self, parameter):
        """The gradient, and its version when it was made: nothing may change it until its reduction ends."""
        return self.ready.get(parameter) or (parameter.grad, parameter.grad._version)

    def _as_sent(self, parameter):
        """What travels: the gradient itself where its elements are in the order of all ranks, else a copy."""
        tensor, ctx = self.compression.compress(parameter.grad)
        order = self.order_of.get(parameter)
        if order is not None:
            tensor = tensor.permute(order)
            return (tensor, ctx) if tensor.is_contiguous() else (tensor.contiguous(), ctx)
        return tensor.contiguous(), ctx

    def _put_back(self, parameter, buffer, ctx):
        with torch.no_grad():
            order = self.order_of.get(parameter)
            tensor = buffer if order is None else buffer.permute(gradient_buckets.inverse_order(order))
            tensor = self.compression.decompress(tensor, ctx)
            if tensor.data_ptr() != parameter.grad.data_ptr():
                parameter.grad.copy_(tensor)

    def _launch_in_place(self, bucket, parameters):
        for parameter in parameters:
            if parameter.grad is not bucket.views[parameter]:
                self.ready.pop(parameter, None)
            bucket.take_in(parameter)
        version = bucket.flat._version
        name = f"allreduce.{self.sent_names[bucket.parameters[0]]}+{len(bucket.parameters) - 1}"
        handle = self._submit([bucket.flat], [name], bucket.priority)

        def finish():
            if bucket.flat._version != version:
                self.spoiled += parameters
            self.spoiled += [one for one in parameters if one.grad is not bucket.views[one]]

        bucket.in_flight.append((handle, finish))

    def _launch_sparse(self, bucket, parameter):
        noted = parameter.grad
        wait = ops.sparse_allreduce_async(noted, self.sent_names[parameter], self.op, self.process_set)

        def finish(result):
            if parameter.grad is not noted:
                self.spoiled.append(parameter)
            parameter.grad = result

        bucket.in_flight.append((wait, finish))

    def _launch_mixed(self, bucket, parameter, total):
        """Ranks expected a sparse gradient, and some have a dense one. Some may have submitted sparse ones in backward, so
        both are reduced; the result is dense."""
        dense = torch.zeros_like(parameter, requires_grad=False)
        if parameter.grad is not None and not parameter.grad.is_sparse:
            dense, parameter.grad = parameter.grad.contiguous(), None
        if not bucket.is_launched:
            if parameter.grad is None:
                parameter.grad = _zeros(parameter, total)
            self._launch_sparse(bucket, parameter)
        bucket.is_launched = True
        handle = self._submit([dense], [f"allreduce.{self.sent_names[parameter]}"], bucket.priority)

        def finish():
            parameter.grad = dense + parameter.grad.to_dense()

        bucket.in_flight.append((handle, finish))

    # ---- At the step ----

    def synchronize(self):
        """Waits for all reductions. A parameter without a gradient on this rank takes part with zeros if another rank has
        one; if none has, it is left as it is."""
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
        if self.world is not group or self.has_strangers:
            self._complete_first(group, known)
        if self.refusals:
            raise ValueError("; ".join(self.refusals))

    def _complete_known(self, group):
        """A step in which ranks know each other's parameters."""
        if self.presence.handle is None:
            is_ordinary = len(self.ready) == self.awaited and not self.deviates and not self._unnoticed()
            self.presence.submit(group, None if is_ordinary else self._codes())
        totals = self.presence.wait()
        if totals is not None:
            totals = dict(zip(self.expected, totals))
            self._decide(totals)
            self._expect(totals)
        self._finish()

    def _complete_first(self, group, known):
        """The first step of a world, or of parameters that were added. `known`: {parameter: what is expected of it} of those
        whose step is complete."""
        totals = self._meet(group, known)
        self._decide(totals)
        self._expect({**totals, **{parameter: self.expected[parameter] for parameter in known}})
        self._finish()

    def _unnoticed(self):
        """Whether there is a gradient that no rank expects and no hook has seen: one that the program has set."""
        return any(
            expected == NONE and self._has_gradient(parameter) for parameter, expected in self.expected.items()
        )

    def _has_gradient(self, parameter):
        """A frozen parameter may have a gradient of an earlier step, which is of no account."""
        return parameter.grad is not None and (parameter in self.ready or parameter.requires_grad)

    def _codes(self):
        self.spoiled += [parameter for parameter in self.ready if parameter.grad is None]
        return [
            code_of(self._dense_if_asked(parameter)) if self._has_gradient(parameter) else NONE for parameter in self.expected
        ]

    def _meet(self, group, known):
        """Ranks compare their parameters, and choose buckets. Returns the totals of those that are not known."""
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
                    bucket.let_go(parameter)
                bucket.lay_out(unlike)
        self.world, self.has_strangers = group, False
        return totals

    def _places_of_first_backward(self):
        """{parameter: its place in the order in which gradients came}; later those that did not come, the last first."""
        came = list(self.ready)
        came += [parameter for parameter in reversed(self.hooks) if parameter not in self.ready]
        return {parameter: place for place, parameter in enumerate(came)}

    def _expect(self, totals):
        """What the next step is expected to be, or this one where it is the first. The same on all ranks."""
        self.expected = {parameter: gradient_agreement.expected_next(total) for parameter, total in totals.items()}
        self.awaited = sum(1 for code in self.expected.values() if code)
        codes = list(self.expected.values())
        if self.presence is None or self.presence.expected != codes:
            self.presence = Presence(self.sent_names[next(iter(self.expected))] if self.expected else "", codes)

    def _resolve(self, totals):
        """Where a gradient is sparse on some ranks only, it becomes dense. A sparse one that cannot be reduced takes no part,
        which is an error when the others are complete."""
        for parameter, total in totals.items():
            if not is_sparse(total):
                continue
            bucket = self.bucket_of.get(parameter)
            if is_mixed(total):
                if not is_sparse(self.expected[parameter]):
                    self._make_dense(parameter)
                    totals[parameter] = DENSE
            elif bucket is not None and self._refusal(bucket):
                self.refusals.append(f"DistributedOptimizer, gradient of {self.names[parameter]}: {self._refusal(bucket)}")
                totals[parameter] = NONE

    def _make_dense(self, parameter):
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
            self.ready.pop(parameter, None)

    def _decide(self, totals):
        """Submits what no rank has submitted in backward, and this rank's part of what others have. All follows from
        `totals` and from what was expected, which are the same on all ranks."""
        self._resolve(totals)
        self._set_apart([one for one, total in totals.items() if is_sparse(total) and len(self.bucket_of[one].parameters) > 1])
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
                parameter.grad = _zeros(parameter, totals[parameter])
        self._launch(bucket, parameters)

    def _finish(self):
        """Waits for all, also when one fails: what is in flight works on gradients."""
        failure = None
        for bucket in self.buckets:
            in_flight, bucket.in_flight = bucket.in_flight, []
            for wait, finish in in_flight:
                try:
                    if callable(wait):
                        finish(wait())
                    else:
                        ops.synchronize(wait)
                        finish()
                except Exception as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _spoiled_text(self, parameters):
        names = [self.names[parameter] for parameter in dict.fromkeys(parameters)]
        return (
            f"DistributedOptimizer: the gradient of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''} was "
            "changed between loss.backward() and optimizer.step(), while it was being reduced. This is prohibited as it can "
            "cause a race condition. Call optimizer.synchronize() before changing gradients, and step() within "
            "optimizer.skip_synchronize(); call zero_grad() after step()."
        )

    def start_over(self):
        super().start_over()
        for bucket in self.buckets:
            bucket.start_over(self.expected)
        self.ready.clear()
        self.spoiled, self.refusals = [], []
        self.deviates = self.has_reported = False

    def abandon(self):
        """Forgets the reductions that are in flight. Returns their handles, or functions that wait."""
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
        """The loss of all ranks: an optimizer that looks at it must decide alike everywhere."""
        if not self.is_active or loss is None:
            return loss
        tensor = torch.as_tensor(loss).detach().clone()
        op = self.op if self.op in (Average, Sum) else Average
        return ops.allreduce_(tensor, name="DistributedOptimizer.loss", op=op, process_set=self.process_set)


def _zeros(parameter, total):
    """The contribution of a rank without a gradient: zeros, or no rows of a sparse one."""
    if not is_sparse(total):
        return torch.zeros_like(parameter, requires_grad=False)
    dimensions = gradient_agreement.sparse_dimensions(total)
    indices = torch.empty((dimensions, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[dimensions:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
