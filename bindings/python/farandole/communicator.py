"""Communicators: ordered collectives and messages, without names."""

from . import _native, errors
from .arrays import as_array, count_of, flat, like, same_count, share, stacked
from .codes import Collective, Op
from .world import world_group


class Request:
    """A started collective or message of a communicator."""

    def __init__(self, native, result):
        self._native = native
        self._result = result

    def test(self):
        return self._native is None or self._native.test()

    def wait(self):
        if self._native is not None:
            native, self._native = self._native, None
            native.wait()
        return self._result


class Communicator:
    """Every member calls the same collectives in the same order, as in MPI. Runs in the calling thread, without names.

    Each method `x` has a form `ix` that returns a Request. Keywords: algorithm, prescale, postscale, timeout (seconds),
    deterministic.
    """

    def __init__(self, group=None):
        self.group = group or world_group()
        self._native = _native.Communicator(self.group.member())

    @property
    def rank(self):
        return self.group.rank

    @property
    def size(self):
        return self.group.size

    def _run(self, wait, result, collective, send=None, recv=None, count=0, counts=None, recv_counts=None, op=Op.SUM, root=0,
             **options):  # fmt: skip
        if "timeout" in options:
            options["timeout_ns"] = int(options.pop("timeout") * 1e9)
        request = self._native.call(int(collective), send, recv, count, counts, recv_counts, int(op), int(root), options,
                                    wait)  # fmt: skip
        return result if wait else Request(request, result)

    def _counts(self, name, counts):
        return _native.checked_counts(name, counts, self.size)

    def _allreduce(self, wait, tensor, out=None, op=Op.SUM, **options):
        tensor = as_array(tensor)
        out = like(tensor) if out is None else out
        return self._run(wait, out, Collective.ALLREDUCE, tensor, out, same_count(tensor, out), op=op, **options)

    def _reduce(self, wait, tensor, out=None, op=Op.SUM, root=0, **options):
        tensor = as_array(tensor)
        if self.rank == root and out is None:
            out = like(tensor)
        return self._run(wait, out if self.rank == root else None, Collective.REDUCE, tensor,
                         out if self.rank == root else None, count_of(tensor), op=op, root=root, **options)  # fmt: skip

    def _broadcast(self, wait, tensor, root=0, **options):
        return self._run(wait, tensor, Collective.BROADCAST, tensor, tensor, count_of(tensor), root=root, **options)

    def _allgather(self, wait, tensor, out=None, counts=None, **options):
        tensor = as_array(tensor)
        if counts is not None:
            counts = self._counts("allgather: counts", counts)
            out = flat(tensor, sum(counts)) if out is None else out
        elif out is None:
            out = stacked(tensor, self.size)
        return self._run(wait, out, Collective.ALLGATHER, tensor, out, count_of(tensor), counts, **options)

    def _reduce_scatter(self, wait, tensor, out=None, counts=None, op=Op.SUM, **options):
        tensor = as_array(tensor)
        if counts is not None:
            counts = self._counts("reduce_scatter: counts", counts)
        mine = counts[self.rank] if counts is not None else share(count_of(tensor), self.size, "reduce_scatter")
        out = flat(tensor, mine) if out is None else out
        return self._run(wait, out, Collective.REDUCE_SCATTER, tensor, out, mine, counts, op=op, **options)

    def _alltoall(self, wait, tensor, out=None, send_counts=None, recv_counts=None, **options):
        tensor = as_array(tensor)
        if (send_counts is None) != (recv_counts is None):
            raise errors.InvalidArgumentError("alltoall: give both send_counts and recv_counts, or neither")
        if send_counts is None:
            each = share(count_of(tensor), self.size, "alltoall")
            out = like(tensor) if out is None else out
            return self._run(wait, out, Collective.ALLTOALL, tensor, out, each, **options)
        send_counts = self._counts("alltoall: send_counts", send_counts)
        recv_counts = self._counts("alltoall: recv_counts", recv_counts)
        out = flat(tensor, sum(recv_counts)) if out is None else out
        return self._run(wait, out, Collective.ALLTOALL, tensor, out, 0, send_counts, recv_counts, **options)

    def _gather(self, wait, tensor, out=None, root=0, **options):
        tensor = as_array(tensor)
        if self.rank == root and out is None:
            out = stacked(tensor, self.size)
        out = out if self.rank == root else None
        return self._run(wait, out, Collective.GATHER, tensor, out, count_of(tensor), root=root, **options)

    def _scatter(self, wait, tensor, out, root=0, **options):
        tensor = as_array(tensor) if self.rank == root else None
        return self._run(wait, out, Collective.SCATTER, tensor, out, count_of(out), root=root, **options)

    def _barrier(self, wait, **options):
        return self._run(wait, None, Collective.BARRIER, **options)

    def send(self, tensor, peer):
        self._native.message(True, as_array(tensor), peer, True)

    def recv(self, tensor, peer):
        self._native.message(False, tensor, peer, True)
        return tensor

    def isend(self, tensor, peer):
        return Request(self._native.message(True, as_array(tensor), peer, False), None)

    def irecv(self, tensor, peer):
        return Request(self._native.message(False, tensor, peer, False), tensor)

    def abort(self, reason):
        """Ends the communicator on all ranks: they get AbortedError with `reason`."""
        self._native.abort(reason)

    def free(self):
        self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()


def _add_forms():
    """Gives Communicator the blocking and the started form of each collective."""

    def form(name, private, wait):
        def method(self, *arguments, **options):
            return private(self, wait, *arguments, **options)

        method.__name__ = method.__qualname__ = name
        return method

    for name in ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "gather", "scatter",
                 "barrier"):  # fmt: skip
        private = getattr(Communicator, "_" + name)
        setattr(Communicator, name, form(name, private, True))
        setattr(Communicator, "i" + name, form("i" + name, private, False))


_add_forms()
