"""One call of c10d: its options, the ordered collective that runs it, and the checks of its arguments."""

import torch
import torch.distributed as dist

from ... import _native, errors
from . import operands, order
from .devices import DeviceWork, GroupStreams, current_place, device_of, is_captured, place_on
from .work import DoneWork, Work, as_torch, together

_DONE = DoneWork()


class CallOptions:
    """Options that a caller omitted or passed one by one."""

    def __init__(self, op=dist.ReduceOp.SUM, root=0, timeout=None):
        self.reduceOp = op
        self.rootRank = root
        self.rootTensor = 0
        self.timeout = timeout
        self.asyncOp = True


def as_list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def only(tensors, operation):
    tensors = as_list(tensors)
    if len(tensors) != 1:
        raise errors.InvalidArgumentError(f"{operation} takes one tensor, not {len(tensors)}")
    return tensors[0]


class Calls:
    """The base of a process group that has a channel, a size, a rank and a timeout."""

    def __init__(self):
        self._started = 0  # the number of collectives so far
        self._group_streams = GroupStreams()
        self._blocking = None  # in _run_each: blocking calls on devices, which are launched together

    def _timeout_of(self, opts):
        timeout = opts.timeout
        if timeout is None or timeout.days < 0 or not timeout:  # c10d passes a negative value for "not given"
            return self._timeout_ns
        return int(timeout.total_seconds() * 1e9)

    def _run(self, opts, tensors, keep, afterwards, *call, counts=None, recv_counts=None):
        """Runs one collective: blocks, or returns the Work of the started collective."""
        timeout_ns = self._timeout_of(opts)
        if order.is_delivering():
            order.check(self, self._started)
        self._started += 1
        device = None if tensors and tensors[0].is_cpu else device_of(tensors, keep)
        try:
            if device is not None:
                return self._run_on(device, opts, tensors, keep, afterwards, (*call, timeout_ns, counts, recv_counts))
            if getattr(opts, "asyncOp", True):
                origin = (self, self._started)
                pending = self._channel.submit(*call, timeout_ns, counts, recv_counts, None, keep)
                return self._keep_batch(Work((pending,), tensors, afterwards, origin))
            if counts is None:
                self._channel.run(*call, timeout_ns)
            else:
                self._channel.run_uneven(*call, timeout_ns, counts, recv_counts)
        except errors.Error as error:
            raise as_torch(error) from None
        if afterwards is not None:
            afterwards()
        return _DONE

    def _run_on(self, device, opts, tensors, keep, afterwards, call):
        if getattr(opts, "asyncOp", True):
            stream = self._group_streams.enter(device, keep)
            pending = self._channel.submit(*call, place_on(stream, keep), keep)
            return self._keep_batch(DeviceWork((pending,), tensors, afterwards, (self, self._started), stream, keep))
        if self._blocking is not None and not is_captured():
            pending = self._channel.submit(*call, current_place(device, keep), keep)
            self._blocking.append((pending, afterwards))
            return _DONE
        self._channel.run_on(*call, current_place(device, keep))
        if afterwards is not None:
            afterwards()
        return _DONE

    def _begin_each(self):
        """Keeps collectives on devices back until _launch_each()."""
        self._blocking = []
        self._channel.collect()

    def _launch_each(self):
        """Launches them as one group. Returns (pending, function to call afterwards) of those that are to block."""
        blocking, self._blocking = self._blocking, None
        self._channel.launch()
        return blocking or []

    def _run_each(self, opts, calls):
        """Runs several collectives and returns one Work for them. Those on devices are launched together."""
        self._begin_each()
        try:
            works = [call() for call in calls]
        finally:
            blocking = self._launch_each()
        if getattr(opts, "asyncOp", True):
            return together(works)
        try:
            for pending, afterwards in blocking:
                pending.wait()
                if afterwards is not None:
                    afterwards()
        except errors.Error as error:
            raise as_torch(error) from None
        return _DONE

    def _check_pieces(self, operation, pieces, own, index):
        if len(pieces) != self._size:
            raise errors.InvalidArgumentError(f"{operation}: {len(pieces)} tensors for {self._size} ranks")
        operands.same_dtype(own, pieces[0])
        if pieces[index].numel() != own.numel():
            raise errors.InvalidArgumentError(
                f"{operation}: tensor {index} of the list has {pieces[index].numel()} elements, this rank's "
                f"{own.numel()}"
            )

    def _check_even(self, operation, pieces, own):
        self._check_pieces(operation, pieces, own, 0)
        if any(piece.numel() != own.numel() for piece in pieces):
            raise errors.InvalidArgumentError(
                f"{operation}: the tensors of the list must all have {own.numel()} elements"
            )

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
                raise errors.InvalidArgumentError(
                    f"all_to_all_single: {rows} {what} rows do not divide among {self._size}"
                )
            splits = [rows // self._size] * self._size
        splits = _native.checked_counts(f"all_to_all_single: the {what} splits", splits, self._size)
        if sum(splits) != rows:
            raise errors.InvalidArgumentError(
                f"all_to_all_single: the {what} splits {list(splits)} do not make {rows} rows for {self._size} ranks"
            )
        row = tensor.numel() // rows if rows else 0
        return [one * row * parts for one in splits]
