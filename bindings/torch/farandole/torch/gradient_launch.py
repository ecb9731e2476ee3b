"""The reductions of gradients: their start, their form, and their end."""

import torch

from ..basics import Average, Sum
from . import gradient_agreement, gradient_buckets, ops
from .compression import BlockCompressor, Compression, Residuals, block_format_of
from .gradient_agreement import is_sparse
from .gradient_grouping import GroupedGradients
from .tensors import catch_up


class LaunchedGradients(GroupedGradients):
    """Starts the reductions of buckets and waits for them."""

    def __init__(self, names, compression, passes, op, predivide, groups, process_set, shared):
        super().__init__(names, passes, op, groups, process_set, shared)
        if shared and compression is not Compression.none:
            raise ValueError("gradients_in_shared_memory does not support compression: gradients are reduced in place")
        self.compression = compression
        if isinstance(compression, BlockCompressor):
            _check_blocks(compression, op, predivide)
        self.residuals = Residuals()
        self.bounds = []  # error bounds of this step's compressed reductions
        self.error_bound = 0.0  # the largest of the last step
        self.prescale = 1.0 / predivide if op == Average else 1.0
        self.postscale = predivide if op == Average else 1.0
        self.spoiled = []  # parameters whose gradients were changed during their reduction
        # {parameter: order of dimensions in a message}, if it is not the usual one
        self.order_of = {}

    def _launch(self, bucket, parameters):
        """Starts the reduction of some gradients of a bucket: the expected ones, or others that arrived."""
        if bucket.streams:  # autograd uses the forward pass's streams, of which a bucket may have several
            catch_up(torch.cuda.current_stream(bucket.streams[-1].device), *bucket.streams)
        bucket.is_launched = True
        parameters = [parameter for parameter in parameters if self.expected[parameter]] or parameters
        if bucket.is_shared and self.expected[parameters[0]]:
            self._launch_in_place(bucket, parameters)
        elif parameters[0].grad.is_sparse:
            self._launch_sparse(bucket, parameters[0])
        else:
            self._launch_dense(bucket, parameters)

    def _submit(self, tensors, names, priority, block_formats=None):
        return ops.submit_allreduce(
            tensors, tensors, names, self.world, self.op, self.prescale, self.postscale, priority, block_formats,
            self.bounds)  # fmt: skip

    def _launch_dense(self, bucket, parameters):
        noted = [self._noted(parameter) for parameter in parameters]
        sent = [self._as_sent(parameter) for parameter in parameters]
        buffers = [buffer for buffer, _ in sent]
        names = [f"allreduce.{self.sent_names[parameter]}" for parameter in parameters]
        formats = [self._block_format_of(parameter) for parameter in parameters]

        def finish():
            for parameter, (gradient, version), (buffer, ctx) in zip(parameters, noted, sent):
                if parameter.grad is not gradient or gradient._version != version:
                    self.spoiled.append(parameter)
                elif buffer is not gradient:
                    self._put_back(parameter, buffer, ctx)

        self._submit_in_parts(bucket, buffers, names, formats, finish)

    def _submit_in_parts(self, bucket, tensors, names, formats, finish):
        """Submits several tensors as one unit, and a single one in parts that other reductions may overtake."""
        parts = [tensors]
        if len(tensors) == 1:
            parts = [[part] for part in gradient_buckets.in_parts(tensors[0], self._part_bytes_of(bucket))]
        for number, part in enumerate(parts):
            own = names if len(parts) == 1 else [f"{names[0]}[{number}]"]
            handle = self._submit(part, own, self._priority_of(bucket), formats)
            bucket.in_flight.append((handle, finish if number == len(parts) - 1 else _nothing))

    def _priority_of(self, bucket):
        return bucket.priority

    def _part_bytes_of(self, bucket):
        """The size of parts; 0: the tensor is reduced as a whole."""
        return 0

    def _noted(self, parameter):
        """The gradient and its version. No code may change the gradient until its reduction ends."""
        return self.ready.get(parameter) or (parameter.grad, parameter.grad._version)

    def _block_format_of(self, parameter):
        block_format = block_format_of(self.compression, parameter)
        return 0 if block_format and self.compression.excludes(self.names[parameter], parameter) else block_format

    def _as_sent(self, parameter):
        """The tensor to send: the gradient itself if its elements have the common order, else a copy."""
        if isinstance(self.compression, BlockCompressor):
            tensor, ctx = parameter.grad, None
        else:
            tensor, ctx = self.compression.compress(parameter.grad)
        order = self.order_of.get(parameter)
        if order is not None:
            tensor = tensor.permute(order)
        if getattr(self.compression, "feedback", False) and tensor.dtype is torch.float32:
            if block_format := self._block_format_of(parameter):
                # A copy, because adding to the gradient itself would change it during its reduction.
                tensor = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                self.residuals.add_to(parameter, tensor, block_format)
        return tensor.contiguous(), ctx

    def _put_back(self, parameter, buffer, ctx):
        with torch.no_grad():
            order = self.order_of.get(parameter)
            tensor = buffer if order is None else buffer.permute(gradient_buckets.inverse_order(order))
            tensor = self.compression.decompress(tensor, ctx)
            if tensor.data_ptr() != parameter.grad.data_ptr():
                parameter.grad.copy_(tensor)

    def _launch_in_place(self, bucket, parameters):
        outside = [parameter for parameter in parameters if parameter.grad is not bucket.views[parameter]]
        replaced = [one for one in outside if one in self.ready and self.ready[one][0] is not one.grad]
        bucket.take_in(outside)
        for parameter in outside:
            if parameter in self.ready:
                self.ready[parameter] = parameter.grad, parameter.grad._version
        for parameter in replaced:
            del self.ready[parameter]
        version = bucket.flat._version
        name = f"allreduce.{self.sent_names[bucket.parameters[0]]}+{len(bucket.parameters) - 1}"

        def finish():
            if bucket.flat._version != version:
                self.spoiled += parameters
            self.spoiled += [one for one in parameters if one.grad is not bucket.views[one]]

        self._submit_in_parts(bucket, [bucket.flat], [name], None, finish)

    def _launch_sparse(self, bucket, parameter):
        noted = parameter.grad
        wait = ops.sparse_allreduce_async(noted, self.sent_names[parameter], self.op, self.process_set)

        def finish(result):
            if parameter.grad is not noted:
                self.spoiled.append(parameter)
            parameter.grad = result

        bucket.in_flight.append((wait, finish))

    def _launch_mixed(self, bucket, parameter, total):
        """Reduces a gradient that ranks expected to be sparse and that is dense on some of them.

        Some ranks may have submitted sparse ones in backward, so both forms are reduced. The result is dense.
        """
        dense = torch.zeros_like(parameter, requires_grad=False)
        if parameter.grad is not None and not parameter.grad.is_sparse:
            dense, parameter.grad = parameter.grad.contiguous(), None
        if not bucket.is_launched:
            if parameter.grad is None:
                parameter.grad = zeros_for(parameter, total)
            self._launch_sparse(bucket, parameter)
        bucket.is_launched = True
        handle = self._submit([dense], [f"allreduce.{self.sent_names[parameter]}"], self._priority_of(bucket))

        def finish():
            parameter.grad = dense + parameter.grad.to_dense()

        bucket.in_flight.append((handle, finish))

    def _finish(self, is_ordinary=False):
        """Waits for all reductions, also if one fails, because those in flight use the gradients.

        `is_ordinary`: all ranks have the expected gradients and have submitted all reductions.
        """
        failure = gradient_buckets.wait_for(self._take_in_flight())
        self._take_bounds()
        if failure is not None:
            raise failure

    def _take_in_flight(self):
        for bucket in self.buckets:
            in_flight, bucket.in_flight = bucket.in_flight, []
            yield from in_flight

    def _take_bounds(self, before=0.0):
        """`before`: the bound of the same step's reductions that have ended before."""
        self.error_bound = max([before, *self.bounds])
        self.bounds.clear()

    def _spoiled_text(self, parameters):
        names = [self.names[parameter] for parameter in dict.fromkeys(parameters)]
        return (
            f"DistributedOptimizer: the gradient of {', '.join(names[:3])}{' and others' if len(names) > 3 else ''} "
            "was changed between loss.backward() and optimizer.step(), while it was being reduced. This is "
            "prohibited as it can cause a race condition. Call optimizer.synchronize() before changing gradients, "
            "and step() within optimizer.skip_synchronize(); call zero_grad() after step()."
        )


def _nothing():
    pass


def _check_blocks(compression, op, predivide):
    if op not in (Average, Sum):
        raise ValueError(f"DistributedOptimizer: {compression} is for op=Average and op=Sum; leave it out")
    if compression.feedback and predivide != 1.0:
        raise ValueError(f"DistributedOptimizer: {compression} excludes gradient_predivide_factor; leave one out")


def zeros_for(parameter, total):
    """The contribution of a rank without a gradient: zeros, or an empty sparse tensor."""
    if not is_sparse(total):
        return torch.zeros_like(parameter, requires_grad=False)
    dimensions = gradient_agreement.sparse_dimensions(total)
    indices = torch.empty((dimensions, 0), dtype=torch.int64, device=parameter.device)
    values = torch.empty((0, *parameter.shape[dimensions:]), dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, is_coalesced=True, check_invariants=False)
