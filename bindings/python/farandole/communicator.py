"""Communicators: ordered collectives and messages, without names."""

import functools

from . import _native, errors
from .arrays import as_array, count_of, flat, like, same_count, share, stacked
from .codes import Collective, Op, number_of
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


_NO_OPTIONS = {}


def _options(algorithm, timeout, deterministic=None, prescale=None, postscale=None):
    """What the native call reads of a collective's keywords; those that were not given keep their defaults there."""
    if algorithm is timeout is deterministic is prescale is postscale is None:
        return _NO_OPTIONS
    if timeout is not None and not timeout >= 0:
        raise errors.InvalidArgumentError(f"timeout={timeout!r}: give seconds, or None for what is configured")
    if algorithm is not None and not isinstance(algorithm, str):
        raise errors.InvalidArgumentError(f"algorithm={algorithm!r}: give its name, such as 'ring', or None")
    named = dict(algorithm=algorithm, timeout_ns=timeout and int(timeout * 1e9), deterministic=deterministic,
                 prescale=prescale, postscale=postscale)  # fmt: skip
    return {name: value for name, value in named.items() if value is not None}


def _collective(function):
    """Gives a collective an error that lists its keywords where one is misspelt."""

    @functools.wraps(function)
    def method(self, *arguments, **options):
        try:
            return function(self, *arguments, **options)
        except TypeError:
            _refuse_unknown(function, function.__name__, options)
            raise

    return method


def _started(name, function):
    """The form of a collective that returns a Request."""
    function = function.__wrapped__

    @functools.wraps(function)
    def method(self, *arguments, **options):
        try:
            return function(self._starting, *arguments, **options)
        except TypeError:
            _refuse_unknown(function, name, options)
            raise

    method.__name__, method.__qualname__ = name, f"Communicator.{name}"
    method.__doc__ = f"Starts a collective and returns its Request. {function.__doc__}"
    return method


def _refuse_unknown(function, name, options):
    code = function.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(
            f"Communicator.{name} has no keyword '{unknown[0]}'; its keywords are {', '.join(known)}"
        ) from None


class Communicator:
    """Every member calls the same collectives in the same order, as in MPI. Runs in the calling thread, without names.

    Each collective `x` has a form `ix` with the same parameters that returns a Request. Keywords of all collectives:

    algorithm: the name of a schedule, as `farandole explain` shows them; None chooses one.
    timeout: seconds until TimeoutError; None or 0: as configured.

    Keywords of those that reduce (allreduce, reduce, reduce_scatter):

    prescale, postscale: the result is postscale * op over ranks of (prescale * tensor).
    deterministic: True sums in rank order whatever the algorithm and the transport; None: as configured.
    """

    _waits = True

    def __init__(self, group=None):
        self.group = group or world_group()
        self._native = _native.Communicator(self.group.member())
        self._starting = _Starting(self)

    @property
    def rank(self):
        return self.group.rank

    @property
    def size(self):
        return self.group.size

    def _run(self, options, result, collective, send=None, recv=None, count=0, counts=None, recv_counts=None, op=Op.SUM,
             root=0):  # fmt: skip
        request = self._native.call(int(collective), send, recv, count, counts, recv_counts,
                                    number_of(op), int(root), options, self._waits)  # fmt: skip
        return result if self._waits else Request(request, result)

    @_collective
    def allreduce(self, tensor, out=None, op=Op.SUM, *, algorithm=None, prescale=None, postscale=None, timeout=None,
                  deterministic=None):  # fmt: skip
        """The tensors of all ranks combined by `op`, on every rank. out=tensor works in place."""
        options = _options(algorithm, timeout, deterministic, prescale, postscale)
        tensor = as_array(tensor)
        out = like(tensor) if out is None else out
        return self._run(options, out, Collective.ALLREDUCE, tensor, out, same_count(tensor, out), op=op)

    @_collective
    def reduce(
        self,
        tensor,
        out=None,
        op=Op.SUM,
        root=0,
        *,
        algorithm=None,
        prescale=None,
        postscale=None,
        timeout=None,
        deterministic=None,
    ):
        """The tensors of all ranks combined by `op`, on rank `root`; None on others."""
        options = _options(algorithm, timeout, deterministic, prescale, postscale)
        tensor = as_array(tensor)
        if self.rank == root and out is None:
            out = like(tensor)
        out = out if self.rank == root else None
        return self._run(options, out, Collective.REDUCE, tensor, out, count_of(tensor), op=op, root=root)

    @_collective
    def broadcast(self, tensor, root=0, *, algorithm=None, timeout=None):
        """Writes the tensor of rank `root` into the tensor of every rank."""
        options = _options(algorithm, timeout)
        return self._run(options, tensor, Collective.BROADCAST, tensor, tensor, count_of(tensor), root=root)

    @_collective
    def allgather(self, tensor, out=None, counts=None, *, algorithm=None, timeout=None):
        """The tensors of all ranks, stacked in rank order.

        `counts`: how many elements each rank gives; the result is flat.
        """
        options = _options(algorithm, timeout)
        tensor = as_array(tensor)
        if counts is not None:
            counts = _native.checked_counts("allgather: counts", counts, self.size)
            out = flat(tensor, sum(counts)) if out is None else out
        elif out is None:
            out = stacked(tensor, self.size)
        return self._run(options, out, Collective.ALLGATHER, tensor, out, count_of(tensor), counts)

    @_collective
    def reduce_scatter(self, tensor, out=None, counts=None, op=Op.SUM, *, algorithm=None, prescale=None, postscale=None,
                       timeout=None, deterministic=None):  # fmt: skip
        """This rank's part of the tensors of all ranks combined by `op`. `counts`: how many elements each rank gets."""
        options = _options(algorithm, timeout, deterministic, prescale, postscale)
        tensor = as_array(tensor)
        if counts is not None:
            counts = _native.checked_counts("reduce_scatter: counts", counts, self.size)
        mine = counts[self.rank] if counts is not None else share(count_of(tensor), self.size, "reduce_scatter")
        out = flat(tensor, mine) if out is None else out
        return self._run(options, out, Collective.REDUCE_SCATTER, tensor, out, mine, counts, op=op)

    @_collective
    def alltoall(self, tensor, out=None, send_counts=None, recv_counts=None, *, algorithm=None, timeout=None):
        """Sends part r of the tensor to each rank r. `send_counts`, `recv_counts`: how many elements go to and come
        from each rank; equal parts without them."""
        options = _options(algorithm, timeout)
        tensor = as_array(tensor)
        if (send_counts is None) != (recv_counts is None):
            raise errors.InvalidArgumentError("alltoall: give both send_counts and recv_counts, or neither")
        if send_counts is None:
            each = share(count_of(tensor), self.size, "alltoall")
            out = like(tensor) if out is None else out
            return self._run(options, out, Collective.ALLTOALL, tensor, out, each)
        send_counts = _native.checked_counts("alltoall: send_counts", send_counts, self.size)
        recv_counts = _native.checked_counts("alltoall: recv_counts", recv_counts, self.size)
        out = flat(tensor, sum(recv_counts)) if out is None else out
        return self._run(options, out, Collective.ALLTOALL, tensor, out, 0, send_counts, recv_counts)

    @_collective
    def gather(self, tensor, out=None, root=0, *, algorithm=None, timeout=None):
        """The tensors of all ranks, stacked in rank order, on rank `root`; None on others."""
        options = _options(algorithm, timeout)
        tensor = as_array(tensor)
        if self.rank == root and out is None:
            out = stacked(tensor, self.size)
        out = out if self.rank == root else None
        return self._run(options, out, Collective.GATHER, tensor, out, count_of(tensor), root=root)

    @_collective
    def scatter(self, tensor, out, root=0, *, algorithm=None, timeout=None):
        """Writes part r of rank `root`'s tensor into `out` of rank r. Others may give None as tensor."""
        options = _options(algorithm, timeout)
        tensor = as_array(tensor) if self.rank == root else None
        return self._run(options, out, Collective.SCATTER, tensor, out, count_of(out), root=root)

    @_collective
    def barrier(self, *, algorithm=None, timeout=None):
        """Returns when all ranks have come here."""
        return self._run(_options(algorithm, timeout), None, Collective.BARRIER)

    iallreduce, ireduce = _started("iallreduce", allreduce), _started("ireduce", reduce)
    ibroadcast, iallgather = _started("ibroadcast", broadcast), _started("iallgather", allgather)
    ireduce_scatter, ialltoall = _started("ireduce_scatter", reduce_scatter), _started("ialltoall", alltoall)
    igather, iscatter = _started("igather", gather), _started("iscatter", scatter)
    ibarrier = _started("ibarrier", barrier)

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


class _Starting(Communicator):
    """The same communicator, whose collectives are started and not waited for."""

    _waits = False

    def __init__(self, waiting):
        self.group, self._native = waiting.group, waiting._native
