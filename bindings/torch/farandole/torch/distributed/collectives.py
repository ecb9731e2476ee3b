"""The collectives of c10d as calls of one ordered communicator.

c10d's C++ code finds these methods by name, and the names differ between versions of torch: each method has all of its
names. A call that must block (asyncOp is false) runs in the calling thread at once.
"""

import torch
import torch.distributed as dist

from ... import errors
from ...codes import Collective as C
from . import operands
from .calls import CallOptions, Calls, only
from .sparse import sparse_allreduce
from .work import DoneWork, Work, as_torch, together

_ALLREDUCE, _REDUCE, _BROADCAST, _ALLGATHER = int(C.ALLREDUCE), int(C.REDUCE), int(C.BROADCAST), int(C.ALLGATHER)
_REDUCE_SCATTER, _ALLTOALL = int(C.REDUCE_SCATTER), int(C.ALLTOALL)
_GATHER, _SCATTER, _BARRIER = int(C.GATHER), int(C.SCATTER), int(C.BARRIER)

# Coalesced tensors are packed up to this size. Above it, separate calls cost less than copying the tensors.
_PACKED_BYTES = 1 << 20


def elements_of(tensors):
    return sum(tensor.numel() for tensor in tensors)


class Collectives(Calls):
    """The operations of a process group in which all its ranks take part."""

    # ---- Reductions ----

    def allreduce(self, tensors, opts=None, timeout=None):
        try:
            reduce_op = opts.reduceOp
        except AttributeError:
            reduce_op = dist.ReduceOp.SUM if opts is None else opts
            opts = CallOptions(reduce_op, timeout=timeout)
        tensor = only(tensors, "all_reduce")
        number, parts, op, factor = operands.reduced_as(tensor.dtype, reduce_op)
        try:
            plain, afterwards = operands.both(tensor)
        except operands.NotDense:
            if tensor.layout is not torch.sparse_coo:
                raise
            sparse_allreduce(self, tensor, opts)
            return DoneWork([tensor])
        address, count = plain.data_ptr(), plain.numel() * parts
        return self._run(opts, [tensor], plain, afterwards,
                         _ALLREDUCE, address, address, count, count, count, number, op, 0, factor)  # fmt: skip

    def allreduce_compressed(self, tensor, compression, reduce_op):
        """Starts an allreduce of a contiguous float32 tensor on the CPU in place, in a block format; returns its Work.

        `compression`: a number of codes.COMPRESSIONS. `reduce_op`: SUM or AVG.
        """
        if not tensor.is_cpu:
            raise errors.InvalidArgumentError(f"compression takes tensors on the CPU, not on {tensor.device}")
        opts = CallOptions(reduce_op)
        number, parts, op, factor = operands.reduced_as(tensor.dtype, reduce_op)
        address, count = tensor.data_ptr(), tensor.numel() * parts
        self._started += 1
        try:
            pending = self._channel.submit_compressed(
                _ALLREDUCE, address, address, count, count, count, number, op, 0, factor, self._timeout_of(opts),
                compression, tensor)  # fmt: skip
        except errors.Error as error:
            raise as_torch(error) from None
        return self._keep_batch(Work((pending,), [tensor], None, (self, self._started)))

    def allreduce_coalesced(self, tensors, opts=None):
        opts = opts or CallOptions()
        if len(tensors) == 1:
            return self.allreduce(tensors, opts)

        def one(group):
            if len(group) == 1 or sum(tensor.nbytes for tensor in group) > _PACKED_BYTES:
                return together([self.allreduce([tensor], opts) for tensor in group])
            return self._allreduce_packed(group, opts)

        kinds = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        return self._run_each(opts, [lambda group=group: one(group) for group in kinds.values()])

    def _allreduce_packed(self, tensors, opts):
        number, parts, op, factor = operands.reduced_as(tensors[0].dtype, opts.reduceOp)
        block, source = operands.joined_source(tensors)
        block, address, spread = (block, source, None) if block is tensors else self._spread(tensors, block)
        count = sum(tensor.numel() for tensor in tensors) * parts
        return self._run(opts, tensors, block, spread, _ALLREDUCE, address, address, count, count, count,
                         number, op, 0, factor)  # fmt: skip

    @staticmethod
    def _spread(tensors, block):
        def spread():
            parts = block.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts):
                tensor.detach().copy_(part.view(tensor.shape))

        return block, block.data_ptr(), spread

    def reduce(self, tensors, opts=None, op=dist.ReduceOp.SUM, timeout=None):
        if not hasattr(opts, "reduceOp"):
            opts = CallOptions(op, opts or 0, timeout)
        tensor = only(tensors, "reduce")
        number, parts, op, factor = operands.reduced_as(tensor.dtype, opts.reduceOp)
        is_root = opts.rootRank == self._rank
        plain, afterwards = operands.both(tensor) if is_root else (operands.source(tensor), None)
        address, count = plain.data_ptr(), plain.numel() * parts
        return self._run(
            opts,
            [tensor],
            plain,
            afterwards,
            _REDUCE,
            address,
            address if is_root else 0,
            count,
            count,
            count,
            number,
            op,
            opts.rootRank,
            factor,
        )

    def reduce_scatter(self, outputs, inputs, opts=None, timeout=None):
        if not hasattr(opts, "reduceOp"):
            opts = CallOptions(dist.ReduceOp.SUM if opts is None else opts, timeout=timeout)
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        output, pieces = only(outputs, "reduce_scatter"), inputs[0]
        self._check_pieces("reduce_scatter", pieces, output, self._rank)
        number, parts, op, factor = operands.reduced_as(output.dtype, opts.reduceOp)
        block, address = operands.joined_source(pieces)
        plain, afterwards = operands.target(output)
        count = plain.numel() * parts
        return self._run(opts, [output], (block, plain), afterwards, _REDUCE_SCATTER, address, plain.data_ptr(),
                         count, elements_of(pieces) * parts, count, number, op, 0, factor,
                         **self._uneven(pieces, parts))  # fmt: skip

    def reduce_scatter_single(self, output, input, opts=None, timeout=None):
        opts = opts or CallOptions()
        self._check_whole("reduce_scatter", input, output)
        number, parts, op, factor = operands.reduced_as(output.dtype, opts.reduceOp)
        read = operands.source(input)
        plain, afterwards = operands.target(output)
        return self._run(
            opts,
            [output],
            (read, plain),
            afterwards,
            _REDUCE_SCATTER,
            read.data_ptr(),
            plain.data_ptr(),
            plain.numel() * parts,
            read.numel() * parts,
            plain.numel() * parts,
            number,
            op,
            0,
            factor,
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or CallOptions()
        return self._run_each(opts, [lambda o=output, i=input: self.reduce_scatter_single(o, i, opts)
                                     for output, input in zip(outputs, inputs)])  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- Copies ----

    def broadcast(self, tensors, opts=None, timeout=None):
        if not hasattr(opts, "rootRank"):
            opts = CallOptions(root=opts or 0, timeout=timeout)
        tensor = only(tensors, "broadcast")
        number, parts = operands.moved_as(tensor.dtype)
        if opts.rootRank == self._rank:
            plain, afterwards = operands.source(tensor), None
        else:
            plain, afterwards = operands.target(tensor)
        address, count = plain.data_ptr(), plain.numel() * parts
        return self._run(opts, [tensor], plain, afterwards,
                         _BROADCAST, address, address, count, count, count, number, 0, opts.rootRank, 1.0)  # fmt: skip

    def all_gather_single(self, output, input, opts=None, timeout=None):
        opts = opts or CallOptions()
        self._check_whole("all_gather", output, input)
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        plain, afterwards = operands.target(output)
        return self._run(
            opts,
            [output],
            (read, plain),
            afterwards,
            _ALLGATHER,
            read.data_ptr(),
            plain.data_ptr(),
            read.numel() * parts,
            read.numel() * parts,
            plain.numel() * parts,
            number,
            0,
            0,
            1.0,
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or CallOptions()
        return self._run_each(opts, [lambda o=output, i=input: self.all_gather_single(o, i, opts)
                                     for output, input in zip(outputs, inputs)])  # fmt: skip

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs, inputs, opts=None):
        if not hasattr(opts, "asyncOp"):
            opts = CallOptions(timeout=opts)
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        pieces, input = only(outputs, "all_gather"), only(inputs, "all_gather")
        self._check_pieces("all_gather", pieces, input, self._rank)
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        block, address, spread = operands.joined_target(pieces)
        count = read.numel() * parts
        return self._run(
            opts,
            pieces,
            (read, block),
            spread,
            _ALLGATHER,
            read.data_ptr(),
            address,
            count,
            count,
            elements_of(pieces) * parts,
            number,
            0,
            0,
            1.0,
            **self._uneven(pieces, parts),
        )

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        opts = opts or CallOptions()
        return self._run_each(
            opts,
            [
                lambda i=index: self.allgather([[one[i] for one in output_lists]], [inputs[i]], opts)
                for index in range(len(inputs))
            ],
        )

    def gather(self, outputs, inputs, opts=None, timeout=None):
        if not hasattr(opts, "rootRank"):
            opts = CallOptions(root=opts or 0, timeout=timeout)
            outputs = [outputs] if outputs else []
        input = only(inputs, "gather")
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        pieces, block, address, spread = [], None, 0, None
        if opts.rootRank == self._rank:
            pieces = only(outputs, "gather")
            self._check_even("gather", pieces, input)
            block, address, spread = operands.joined_target(pieces)
        count = read.numel() * parts
        return self._run(opts, pieces, (read, block), spread, _GATHER, read.data_ptr(), address,
                         count, count, elements_of(pieces) * parts, number, 0, opts.rootRank, 1.0)  # fmt: skip

    def scatter(self, outputs, inputs, opts=None, timeout=None):
        if not hasattr(opts, "rootRank"):
            opts = CallOptions(root=opts or 0, timeout=timeout)
            inputs = [inputs] if inputs else []
        output = only(outputs, "scatter")
        number, parts = operands.moved_as(output.dtype)
        pieces, block, address = [], None, 0
        if opts.rootRank == self._rank:
            pieces = only(inputs, "scatter")
            self._check_even("scatter", pieces, output)
            block, address = operands.joined_source(pieces)
        plain, afterwards = operands.target(output)
        count = plain.numel() * parts
        return self._run(opts, [output], (block, plain), afterwards, _SCATTER, address, plain.data_ptr(),
                         count, elements_of(pieces) * parts, count, number, 0, opts.rootRank, 1.0)  # fmt: skip

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=None):
        if not hasattr(opts, "asyncOp"):
            opts = CallOptions(timeout=opts)
        operands.same_dtype(input, output)
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        plain, afterwards = operands.target(output)
        call = (_ALLTOALL, read.data_ptr(), plain.data_ptr())
        elements = read.numel() * parts, plain.numel() * parts
        if output_splits or input_splits:
            sent = self._split_counts("input", input, input_splits, parts)
            received = self._split_counts("output", output, output_splits, parts)
            return self._run(opts, [output], (read, plain), afterwards, *call, 0, *elements, number, 0, 0, 1.0,
                             counts=sent, recv_counts=received)  # fmt: skip
        share = self._split_counts("input", input, None, parts)[0]
        if share != self._split_counts("output", output, None, parts)[0]:
            raise errors.InvalidArgumentError("all_to_all_single: input and output of one size, or give the splits")
        return self._run(opts, [output], (read, plain), afterwards, *call, share, *elements, number, 0, 0, 1.0)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=None):
        if not hasattr(opts, "asyncOp"):
            opts = CallOptions(timeout=opts)
        for what, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self._size:
                raise errors.InvalidArgumentError(f"all_to_all: {len(tensors)} {what} tensors for {self._size} ranks")
        operands.same_dtype(inputs[0], outputs[0])
        number, parts = operands.moved_as(inputs[0].dtype)
        read, source = operands.joined_source(inputs)
        block, target, spread = operands.joined_target(outputs)
        counts = {"counts": [one.numel() * parts for one in inputs],
                  "recv_counts": [one.numel() * parts for one in outputs]}  # fmt: skip
        return self._run(
            opts,
            outputs,
            (read, block),
            spread,
            _ALLTOALL,
            source,
            target,
            0,
            elements_of(inputs) * parts,
            elements_of(outputs) * parts,
            number,
            0,
            0,
            1.0,
            **counts,
        )

    def barrier(self, opts=None, timeout=None):
        if not hasattr(opts, "asyncOp"):
            opts = CallOptions(timeout=opts if opts is not None else timeout)
        return self._run(opts, [], None, None, _BARRIER, 0, 0, 0, 0, 0, 0, 0, 0, 1.0)
