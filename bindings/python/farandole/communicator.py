"""Communicators: ordered collectives and messages without names."""

import functools
import numbers

from . import _native, errors
from .arrays import as_array, count_of, flat, like, same_count, share, stacked
from .codes import Collective, Op, number_of, number_of_compression
from .world import chosen_group


class Request:
    """A started collective or message of a communicator.

    It makes progress only inside test() and wait(). Its tensors must not be changed until it is done. After wait(),
    `error_bound` is that of a compressed collective; see Communicator.
    """

    error_bound = 0.0

    def __init__(self, native, result):
        self._native = native
        self._result = result

    def test(self):
        """Makes progress without blocking. Returns whether the operation is done, and raises its failure.

        The keyword `timeout` of the operation limits wait() alone, from its begin on.
        """
        return self._native is None or self._native.test()

    def wait(self):
        """Blocks until the operation is done and returns its result (None for isend and ibarrier).

        Raises its failure.
        """
        native = self._native
        if native is not None:
            native.wait()
            self.error_bound = native.error_bound
            self._native = None
        return self._result


_NO_OPTIONS = {}


def _options(algorithm, timeout, deterministic=None, prescale=None, postscale=None, compression=None):
    """The options of a native call. Keywords that are None keep the native defaults."""
    if algorithm is timeout is deterministic is prescale is postscale is compression is None:
        return _NO_OPTIONS
    if timeout is not None and not (isinstance(timeout, numbers.Real) and 0 <= timeout < 9e9):  # in ns it is an int64
        raise errors.InvalidArgumentError(f"timeout={timeout!r}: give seconds, or None for the configured timeout")
    if algorithm is not None and not isinstance(algorithm, str):
        raise errors.InvalidArgumentError(f"algorithm={algorithm!r}: give its name, such as 'ring', or None")
    algorithm = algorithm and errors.checked_text(algorithm, "algorithm")
    named = dict(algorithm=algorithm, timeout_ns=timeout and int(timeout * 1e9), deterministic=deterministic,
                 prescale=prescale, postscale=postscale,
                 compression=compression and number_of_compression(compression))  # fmt: skip
    return {name: value for name, value in named.items() if value is not None}


def _collective(function):
    """Decorates a collective: an unknown keyword raises a TypeError that lists the valid ones."""

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
    """Ordered collectives over a group: every member calls the same collectives in the same order, as in MPI.

    They run in the calling thread. Tensors are as in farandole.allreduce; results are new arrays unless `out` is given.
    Each collective `x` has a form `ix` with the same parameters that returns a Request. Creating a communicator is
    collective over `group` (None: all ranks). Keywords of all collectives:

    `algorithm`: the name of a schedule, as `farandole explain` shows them; None chooses one.
    `timeout`: seconds until TimeoutError; None or 0: the configured time.

    Keywords of the reductions (allreduce, reduce, reduce_scatter):

    `prescale`, `postscale`: the result is postscale * op over ranks of (prescale * tensor).
    `deterministic`: True sums in rank order for every algorithm and transport; None: as configured.

    Keyword of allreduce, reduce_scatter (op=SUM or AVERAGE) and allgather of float32 arrays on the CPU:

    `compression`: "int8", "int4", "float8_e4m3", "float8_e5m2" or "bfloat16" sends values in that format; None sends
    them as they are. All ranks give the same. After the call, `error_bound` of the communicator (of the Request, after
    wait()) is a bound of the largest absolute error over all elements and ranks, the same on every rank; math.inf if a
    value is not finite.

    A communicator with its requests belongs to one thread at a time; only abort() may be called from any thread.

    InvalidArgumentError, before anything is sent, if sizes, counts or options are wrong on this rank, or if another
    call on the communicator is in progress. A failure of another rank raises PeerLostError, AbortedError, ShutDownError
    or TransportError and ends the communicator.
    """

    _waits = True
    error_bound = 0.0

    def __init__(self, group=None):
        self.group = chosen_group(group)
        self._native = _native.Communicator(self.group.member())
        self._starting = _Starting(self)

    @property
    def rank(self):
        """This rank's number in the group."""
        return self.group.rank

    @property
    def size(self):
        """The number of ranks in the group."""
        return self.group.size

    def _run(self, options, result, collective, send=None, recv=None, count=0, counts=None, recv_counts=None, op=Op.SUM,
             root=0):  # fmt: skip
        request = self._native.call(int(collective), send, recv, count, counts, recv_counts,
                                    number_of(op), int(root), options, self._waits)  # fmt: skip
        if not self._waits:
            return Request(request, result)
        if request is not None:
            self.error_bound = request
        return result

    @_collective
    def allreduce(self, tensor, out=None, op=Op.SUM, *, algorithm=None, prescale=None, postscale=None, timeout=None,
                  deterministic=None, compression=None):  # fmt: skip
        """Combines the tensors of all ranks by `op`.

        Every rank gets the result, in the tensor's shape. out=tensor works in place.
        """
        options = _options(algorithm, timeout, deterministic, prescale, postscale, compression)
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
        """Combines the tensors of all ranks by `op`.

        Rank `root` gets the result, in the tensor's shape; the others get None.
        """
        options = _options(algorithm, timeout, deterministic, prescale, postscale)
        tensor = as_array(tensor)
        if self.rank == root and out is None:
            out = like(tensor)
        out = out if self.rank == root else None
        return self._run(options, out, Collective.REDUCE, tensor, out, count_of(tensor), op=op, root=root)

    @_collective
    def broadcast(self, tensor, root=0, *, algorithm=None, timeout=None):
        """Writes the tensor of rank `root` into the tensor of every rank, and returns that tensor."""
        options = _options(algorithm, timeout)
        return self._run(options, tensor, Collective.BROADCAST, tensor, tensor, count_of(tensor), root=root)

    @_collective
    def allgather(self, tensor, out=None, counts=None, *, algorithm=None, timeout=None, compression=None):
        """The tensors of all ranks in rank order, stacked along a new first dimension of size `size`.

        `counts`: the number of elements of each rank's tensor, if they differ. The result is then flat.
        """
        options = _options(algorithm, timeout, compression=compression)
        tensor = as_array(tensor)
        if counts is not None:
            counts = _native.checked_counts("allgather: counts", counts, self.size)
            out = flat(tensor, sum(counts)) if out is None else out
        elif out is None:
            out = stacked(tensor, self.size)
        return self._run(options, out, Collective.ALLGATHER, tensor, out, count_of(tensor), counts)

    @_collective
    def reduce_scatter(self, tensor, out=None, counts=None, op=Op.SUM, *, algorithm=None, prescale=None, postscale=None,
                       timeout=None, deterministic=None, compression=None):  # fmt: skip
        """Combines the flattened tensors of all ranks by `op` and returns this rank's part, flat.

        `counts`: the number of elements that each rank gets. Without it all parts are equal.
        """
        options = _options(algorithm, timeout, deterministic, prescale, postscale, compression)
        tensor = as_array(tensor)
        if counts is not None:
            counts = _native.checked_counts("reduce_scatter: counts", counts, self.size)
        mine = counts[self.rank] if counts is not None else share(count_of(tensor), self.size, "reduce_scatter")
        out = flat(tensor, mine) if out is None else out
        return self._run(options, out, Collective.REDUCE_SCATTER, tensor, out, mine, counts, op=op)

    @_collective
    def alltoall(self, tensor, out=None, send_counts=None, recv_counts=None, *, algorithm=None, timeout=None):
        """Sends part r of the flattened tensor to each rank r, and returns the received parts in rank order.

        `send_counts`, `recv_counts`: the number of elements that go to and come from each rank; the result is then
        flat. Without them all parts are equal, and the result has the tensor's shape.
        """
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
        """The tensors of all ranks in rank order on rank `root`, stacked along a new first dimension; None on the
        others.
        """
        options = _options(algorithm, timeout)
        tensor = as_array(tensor)
        if self.rank == root and out is None:
            out = stacked(tensor, self.size)
        out = out if self.rank == root else None
        return self._run(options, out, Collective.GATHER, tensor, out, count_of(tensor), root=root)

    @_collective
    def scatter(self, tensor, out=None, root=0, *, algorithm=None, timeout=None):
        """Writes part r of rank `root`'s flattened tensor into `out` of rank r, and returns `out`.

        Every rank gives an `out` of its part's size, because only `root` has the tensor; other ranks may pass None as
        tensor.
        """
        options = _options(algorithm, timeout)
        if out is None:
            raise errors.InvalidArgumentError(
                f"scatter: out is missing on rank {self.rank}; give the array that receives this rank's part: "
                f"1/{self.size} of the elements of rank {root}'s tensor"
            )
        tensor = as_array(tensor) if self.rank == root else None
        return self._run(options, out, Collective.SCATTER, tensor, out, count_of(out), root=root)

    @_collective
    def barrier(self, *, algorithm=None, timeout=None):
        """Blocks until all ranks of the group have called it."""
        return self._run(_options(algorithm, timeout), None, Collective.BARRIER)

    iallreduce, ireduce = _started("iallreduce", allreduce), _started("ireduce", reduce)
    ibroadcast, iallgather = _started("ibroadcast", broadcast), _started("iallgather", allgather)
    ireduce_scatter, ialltoall = _started("ireduce_scatter", reduce_scatter), _started("ialltoall", alltoall)
    igather, iscatter = _started("igather", gather), _started("iscatter", scatter)
    ibarrier = _started("ibarrier", barrier)

    def send(self, tensor, peer, *, timeout=None):
        """Sends a tensor to rank `peer` of the group. Blocks until the tensor may be changed.

        A large tensor may need the peer's recv() for that: two ranks that send to each other first wait for ever.
        InvalidArgumentError if `peer` is this rank and no irecv() from it is in flight.
        """
        self._native.message(True, as_array(tensor), peer, _options(None, timeout), True)

    def recv(self, tensor, peer, *, timeout=None):
        """Receives a message of rank `peer` into a tensor of the same size, and returns the tensor.

        InvalidArgumentError if `peer` is this rank and no isend() to it is in flight.
        """
        self._native.message(False, tensor, peer, _options(None, timeout), True)
        return tensor

    def isend(self, tensor, peer):
        """Starts a send and returns its Request."""
        return Request(self._native.message(True, as_array(tensor), peer, _NO_OPTIONS, False), None)

    def irecv(self, tensor, peer):
        """Starts a receive and returns its Request, whose wait() returns the tensor."""
        return Request(self._native.message(False, tensor, peer, _NO_OPTIONS, False), tensor)

    def abort(self, reason):
        """Ends the communicator on all ranks: their calls raise AbortedError with this rank's name and `reason`.

        Any thread may call it.
        """
        # No character of the reason keeps the other ranks waiting.
        self._native.abort(str(reason).replace("\0", "\\0").encode(errors="backslashreplace").decode())

    def free(self):
        """Ends the communicator on this rank. A `with` statement does the same at its end.

        InvalidArgumentError while another thread is in a call on it, which abort() ends.
        """
        self._native.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.free()


class _Starting(Communicator):
    """The same communicator, with collectives that return a Request."""

    _waits = False

    def __init__(self, waiting):
        self.group, self._native = waiting.group, waiting._native
