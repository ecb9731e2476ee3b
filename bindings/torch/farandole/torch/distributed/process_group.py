"""The process group: each of c10d's operations in terms of one ordered communicator and its mailbox.

c10d's C++ code finds these methods by name, and the names have changed with versions of torch: each is here under all of
them. A call that must not return before it is done (asyncOp is false) runs in the calling thread at once.
"""

import itertools

import torch
import torch.distributed as dist

from ... import _native, errors
from ...core import _Collective as C
from . import operands
from .work import DoneWork, Work, as_torch, together

_ALLREDUCE, _REDUCE, _BROADCAST, _ALLGATHER = int(C.ALLREDUCE), int(C.REDUCE), int(C.BROADCAST), int(C.ALLGATHER)
_REDUCE_SCATTER, _ALLTOALL = int(C.REDUCE_SCATTER), int(C.ALLTOALL)
_GATHER, _SCATTER, _BARRIER = int(C.GATHER), int(C.SCATTER), int(C.BARRIER)

_ANY_SOURCE = -1
# Coalesced tensors are packed up to this size: beyond it, a call for each costs less than copying them.
_PACKED_BYTES = 1 << 20
_GRACE_S = 2.0  # how long operations in flight may go on when their group is destroyed
_DONE = DoneWork()


class _Options:
    """Stands for options that a caller left out or gave one by one."""

    def __init__(self, op=dist.ReduceOp.SUM, root=0, timeout=None):
        self.reduceOp = op
        self.rootRank = root
        self.rootTensor = 0
        self.timeout = timeout
        self.asyncOp = True


def _list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _only(tensors, operation):
    tensors = _list(tensors)
    if len(tensors) != 1:
        raise errors.InvalidArgumentError(f"{operation} takes one tensor, not {len(tensors)}")
    return tensors[0]


class ProcessGroup(dist.ProcessGroup):
    """A process group of torch.distributed whose operations run on farandole."""

    def __init__(self, store, rank, size, timeout, world, members, name=""):
        super().__init__(rank, size)
        self._store = store
        self._rank, self._size = rank, size
        self._world = world
        self._ranks = tuple(members)  # ranks of the world, in the group's order
        self._group = world.group(self._ranks)
        self._channel = _native.Channel(self._group)
        self._name, self._desc = name, "undefined"
        self._batch = None
        self._barriers = itertools.count()
        self._splits = itertools.count()
        self.set_timeout(timeout)
        world.add(self)

    # ---- what the group is ----

    def getBackendName(self):
        return "farandole"

    name = getBackendName

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    rank, size = getRank, getSize

    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name

    def getGroupDesc(self):
        return self._desc

    def setGroupDesc(self, desc):
        self._desc = desc

    def get_group_store(self):
        return self._store

    def _get_backend(self, device=None):
        return self

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    @property
    def supports_splitting(self):
        return True

    def set_timeout(self, timeout):
        self._timeout = timeout
        self._timeout_ns = int(timeout.total_seconds() * 1e9)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    # ---- how a call runs ----

    def _timeout_of(self, opts):
        timeout = opts.timeout
        if timeout is None or timeout.days < 0 or not timeout:  # c10d's word for "not given" is negative
            return self._timeout_ns
        return int(timeout.total_seconds() * 1e9)

    def _run(self, opts, tensors, keep, afterwards, *call, counts=None, recv_counts=None):
        """One collective: blocks, or gives the Work of what has been started."""
        timeout_ns = self._timeout_of(opts)
        if not getattr(opts, "asyncOp", True):
            try:
                if counts is None:
                    self._channel.run(*call, timeout_ns)
                else:
                    self._channel.run_uneven(*call, timeout_ns, counts, recv_counts)
            except errors.Error as error:
                raise as_torch(error) from None
            if afterwards is not None:
                afterwards()
            return _DONE
        pending = self._channel.submit(keep, *call, timeout_ns, counts, recv_counts)
        return self._keep_batch(Work((pending,), tensors, afterwards))

    def _run_each(self, opts, calls):
        """Several collectives as one Work."""
        works = [call() for call in calls]
        return together(works) if getattr(opts, "asyncOp", True) else _DONE

    def _keep_batch(self, work):
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _start_coalescing(self, device=None):
        self._batch = []

    def _end_coalescing(self, device=None):
        works, self._batch = self._batch, None
        return together(works or [])

    # ---- reductions ----

    def allreduce(self, tensors, opts=None, timeout=None):
        try:
            reduce_op = opts.reduceOp
        except AttributeError:
            reduce_op = dist.ReduceOp.SUM if opts is None else opts
            opts = _Options(reduce_op, timeout=timeout)
        tensor = _only(tensors, "all_reduce")
        number, parts, op, factor = operands.reduced_as(tensor.dtype, reduce_op)
        plain, afterwards = operands.both(tensor)
        address = plain.data_ptr()
        return self._run(opts, [tensor], plain, afterwards,
                         _ALLREDUCE, address, address, plain.numel() * parts, number, op, 0, factor)  # fmt: skip

    def allreduce_coalesced(self, tensors, opts=None):
        opts = opts or _Options()
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
        return self._run(opts, tensors, block, spread, _ALLREDUCE, address, address, count, number, op, 0, factor)

    @staticmethod
    def _spread(tensors, block):
        def spread():
            parts = block.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts):
                tensor.detach().copy_(part.view(tensor.shape))

        return block, block.data_ptr(), spread

    def reduce(self, tensors, opts=None, op=dist.ReduceOp.SUM, timeout=None):
        if not hasattr(opts, "reduceOp"):
            opts = _Options(op, opts or 0, timeout)
        tensor = _only(tensors, "reduce")
        number, parts, op, factor = operands.reduced_as(tensor.dtype, opts.reduceOp)
        is_root = opts.rootRank == self._rank
        plain, afterwards = operands.both(tensor) if is_root else (operands.source(tensor), None)
        address = plain.data_ptr()
        return self._run(opts, [tensor], plain, afterwards, _REDUCE, address, address if is_root else 0,
                         plain.numel() * parts, number, op, opts.rootRank, factor)  # fmt: skip

    def reduce_scatter(self, outputs, inputs, opts=None, timeout=None):
        if not hasattr(opts, "reduceOp"):
            opts = _Options(dist.ReduceOp.SUM if opts is None else opts, timeout=timeout)
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        output, pieces = _only(outputs, "reduce_scatter"), inputs[0]
        self._check_pieces("reduce_scatter", pieces, output, self._rank)
        number, parts, op, factor = operands.reduced_as(output.dtype, opts.reduceOp)
        block, address = operands.joined_source(pieces)
        plain, afterwards = operands.target(output)
        return self._run(opts, [output], (block, plain), afterwards, _REDUCE_SCATTER, address, plain.data_ptr(),
                         plain.numel() * parts, number, op, 0, factor, **self._uneven(pieces, parts))  # fmt: skip

    def reduce_scatter_single(self, output, input, opts=None, timeout=None):
        opts = opts or _Options()
        self._check_whole("reduce_scatter", input, output)
        number, parts, op, factor = operands.reduced_as(output.dtype, opts.reduceOp)
        read = operands.source(input)
        plain, afterwards = operands.target(output)
        return self._run(opts, [output], (read, plain), afterwards, _REDUCE_SCATTER, read.data_ptr(), plain.data_ptr(),
                         plain.numel() * parts, number, op, 0, factor)  # fmt: skip

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or _Options()
        return self._run_each(opts, [lambda o=output, i=input: self.reduce_scatter_single(o, i, opts)
                                     for output, input in zip(outputs, inputs)])  # fmt: skip

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- copies ----

    def broadcast(self, tensors, opts=None, timeout=None):
        if not hasattr(opts, "rootRank"):
            opts = _Options(root=opts or 0, timeout=timeout)
        tensor = _only(tensors, "broadcast")
        number, parts = operands.moved_as(tensor.dtype)
        if opts.rootRank == self._rank:
            plain, afterwards = operands.source(tensor), None
        else:
            plain, afterwards = operands.target(tensor)
        address = plain.data_ptr()
        return self._run(opts, [tensor], plain, afterwards,
                         _BROADCAST, address, address, plain.numel() * parts, number, 0, opts.rootRank, 1.0)  # fmt: skip

    def all_gather_single(self, output, input, opts=None, timeout=None):
        opts = opts or _Options()
        self._check_whole("all_gather", output, input)
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        plain, afterwards = operands.target(output)
        return self._run(opts, [output], (read, plain), afterwards, _ALLGATHER, read.data_ptr(), plain.data_ptr(),
                         read.numel() * parts, number, 0, 0, 1.0)  # fmt: skip

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or _Options()
        return self._run_each(opts, [lambda o=output, i=input: self.all_gather_single(o, i, opts)
                                     for output, input in zip(outputs, inputs)])  # fmt: skip

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs, inputs, opts=None):
        if not hasattr(opts, "asyncOp"):
            opts = _Options(timeout=opts)
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        pieces, input = _only(outputs, "all_gather"), _only(inputs, "all_gather")
        self._check_pieces("all_gather", pieces, input, self._rank)
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        block, address, spread = operands.joined_target(pieces)
        return self._run(opts, pieces, (read, block), spread, _ALLGATHER, read.data_ptr(), address,
                         read.numel() * parts, number, 0, 0, 1.0, **self._uneven(pieces, parts))  # fmt: skip

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        opts = opts or _Options()
        return self._run_each(opts, [lambda i=index: self.allgather([[one[i] for one in output_lists]], [inputs[i]], opts)
                                     for index in range(len(inputs))])  # fmt: skip

    def gather(self, outputs, inputs, opts=None, timeout=None):
        if not hasattr(opts, "rootRank"):
            opts = _Options(root=opts or 0, timeout=timeout)
            outputs = [outputs] if outputs else []
        input = _only(inputs, "gather")
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        pieces, block, address, spread = [], None, 0, None
        if opts.rootRank == self._rank:
            pieces = _only(outputs, "gather")
            self._check_even("gather", pieces, input)
            block, address, spread = operands.joined_target(pieces)
        return self._run(opts, pieces, (read, block), spread,
                         _GATHER, read.data_ptr(), address, read.numel() * parts, number, 0, opts.rootRank, 1.0)  # fmt: skip

    def scatter(self, outputs, inputs, opts=None, timeout=None):
        if not hasattr(opts, "rootRank"):
            opts = _Options(root=opts or 0, timeout=timeout)
            inputs = [inputs] if inputs else []
        output = _only(outputs, "scatter")
        number, parts = operands.moved_as(output.dtype)
        block, address = None, 0
        if opts.rootRank == self._rank:
            pieces = _only(inputs, "scatter")
            self._check_even("scatter", pieces, output)
            block, address = operands.joined_source(pieces)
        plain, afterwards = operands.target(output)
        return self._run(opts, [output], (block, plain), afterwards,
                         _SCATTER, address, plain.data_ptr(), plain.numel() * parts, number, 0, opts.rootRank, 1.0)  # fmt: skip

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=None):
        if not hasattr(opts, "asyncOp"):
            opts = _Options(timeout=opts)
        operands.same_dtype(input, output)
        number, parts = operands.moved_as(input.dtype)
        read = operands.source(input)
        plain, afterwards = operands.target(output)
        call = (_ALLTOALL, read.data_ptr(), plain.data_ptr())
        if output_splits or input_splits:
            sent = self._split_counts("input", input, input_splits, parts)
            received = self._split_counts("output", output, output_splits, parts)
            return self._run(opts, [output], (read, plain), afterwards, *call, 0, number, 0, 0, 1.0,
                             counts=sent, recv_counts=received)  # fmt: skip
        share = self._split_counts("input", input, None, parts)[0]
        if share != self._split_counts("output", output, None, parts)[0]:
            raise errors.InvalidArgumentError("all_to_all_single: input and output of one size, or give the splits")
        return self._run(opts, [output], (read, plain), afterwards, *call, share, number, 0, 0, 1.0)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=None):
        if not hasattr(opts, "asyncOp"):
            opts = _Options(timeout=opts)
        for what, tensors in (("output", outputs), ("input", inputs)):
            if len(tensors) != self._size:
                raise errors.InvalidArgumentError(f"all_to_all: {len(tensors)} {what} tensors for {self._size} ranks")
        operands.same_dtype(inputs[0], outputs[0])
        number, parts = operands.moved_as(inputs[0].dtype)
        read, source = operands.joined_source(inputs)
        block, target, spread = operands.joined_target(outputs)
        counts = {"counts": [one.numel() * parts for one in inputs],
                  "recv_counts": [one.numel() * parts for one in outputs]}  # fmt: skip
        return self._run(opts, outputs, (read, block), spread, _ALLTOALL, source, target, 0, number, 0, 0, 1.0, **counts)

    # ---- messages and meetings ----

    def _message(self, outgoing, tensors, peer, tag):
        tensor = _only(tensors, "send" if outgoing else "recv")
        plain, afterwards = (operands.source(tensor), None) if outgoing else operands.target(tensor)
        if peer != _ANY_SOURCE and not 0 <= peer < self._size:
            raise errors.InvalidArgumentError(f"there is no rank {peer} in a group of {self._size}")
        pending = self._channel.post(plain, outgoing, plain.data_ptr(), plain.nbytes, peer, tag, self._timeout_ns)
        return self._keep_batch(Work((pending,), [tensor], afterwards))

    def send(self, tensors, peer, tag=0):
        return self._message(True, tensors, peer, tag)

    def recv(self, tensors, peer, tag=0):
        return self._message(False, tensors, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        return self._message(False, tensors, _ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    def barrier(self, opts=None, timeout=None):
        if not hasattr(opts, "asyncOp"):
            opts = _Options(timeout=opts if opts is not None else timeout)
        return self._run(opts, [], None, None, _BARRIER, 0, 0, 0, 0, 0, 0, 1.0)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Rank 0 waits for each of the others, and all are told who is missing. Nothing of the group is lost by it."""
        from .monitored_barrier import monitored_barrier

        monitored_barrier(self._store, self._rank, self._size, timeout or self._timeout, wait_all_ranks,
                          next(self._barriers))  # fmt: skip

    # ---- parts and ends ----

    def splitGroup(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, devices=None):
        """A group of some of this group's ranks; None where this rank is not one of them."""
        number = next(self._splits)
        ranks = list(ranks)
        if self._rank not in ranks:
            return None
        name = group_name or f"{self._name}:split:{number}:{'_'.join(map(str, ranks))}"
        part = ProcessGroup(dist.PrefixStore(f"{name}/", self._store), ranks.index(self._rank), len(ranks),
                            timeout or self._timeout, self._world, [self._ranks[one] for one in ranks], name)  # fmt: skip
        if group_desc:
            part.setGroupDesc(group_desc)
        return part

    split_group = splitGroup

    def abort(self):
        """Ends the group on all its ranks: what they wait for fails with AbortedError and this rank's name."""
        self._channel.abort("torch.distributed asked for it")
        self._end(0.0)

    def shutdown(self):
        """Operations in flight may go on for a short while; then they end on all ranks."""
        self._end(_GRACE_S)

    def _end(self, grace_s):
        self._channel.close(grace_s)
        self._world.forget(self)

    # ---- what must be true of the arguments ----

    def _check_pieces(self, operation, pieces, own, index):
        if len(pieces) != self._size:
            raise errors.InvalidArgumentError(f"{operation}: {len(pieces)} tensors for {self._size} ranks")
        operands.same_dtype(own, pieces[0])
        if pieces[index].numel() != own.numel():
            raise errors.InvalidArgumentError(
                f"{operation}: tensor {index} of the list has {pieces[index].numel()} elements, this rank's {own.numel()}"
            )

    def _check_even(self, operation, pieces, own):
        self._check_pieces(operation, pieces, own, 0)
        if any(piece.numel() != own.numel() for piece in pieces):
            raise errors.InvalidArgumentError(f"{operation}: the tensors of the list must all have {own.numel()} elements")

    def _check_whole(self, operation, whole, part):
        operands.same_dtype(part, whole)
        if whole.numel() != part.numel() * self._size:
            raise errors.InvalidArgumentError(
                f"{operation}: {whole.numel()} elements are not {self._size} times {part.numel()}"
            )

    @staticmethod
    def _uneven(pieces, parts):
        counts = [piece.numel() * parts for piece in pieces]
        return {} if len(set(counts)) == 1 else {"counts": counts}

    def _split_counts(self, what, tensor, splits, parts):
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise errors.InvalidArgumentError(f"all_to_all_single: {rows} {what} rows do not divide among {self._size}")
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows:
            raise errors.InvalidArgumentError(
                f"all_to_all_single: the {what} splits {list(splits)} do not make {rows} rows for {self._size} ranks"
            )
        row = tensor.numel() // rows if rows else 0
        return [one * row * parts for one in splits]


