"""Worlds, groups, named operations and ordered communicators for anything that holds plain memory.

The results are NumPy arrays unless `out` is given; NumPy is imported when the first of them is made. Tensors enter by the
buffer protocol, by `__dlpack__`, or as (pointer, dtype, shape). Arrays on a CUDA device (CuPy's, by
`__cuda_array_interface__`, or by `__dlpack__`) stay there, and their results are of their own library.
"""

import atexit
import contextlib
import enum
import importlib
import math
import os
import threading
import warnings

from . import _native, elastic_door, errors


class Op(enum.IntEnum):
    """How elements are combined. The numbers are the C API's."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BIT_AND = 5
    BIT_OR = 6
    BIT_XOR = 7
    LOGICAL_AND = 8
    LOGICAL_OR = 9
    LOGICAL_XOR = 10
    ADASUM = 12


class Kind(enum.IntEnum):
    """The named operations of the C API."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCE_SCATTER = 4
    BARRIER = 5


class _Collective(enum.IntEnum):
    """The ordered collectives of the C API."""

    ALLREDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    ALLGATHER = 3
    REDUCE_SCATTER = 4
    ALLTOALL = 5
    GATHER = 6
    SCATTER = 7
    BARRIER = 8


# NumPy's names of the C API's dtypes, in the order of their numbers. Three of them come from the package ml_dtypes.
_DTYPE_NAMES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "bool", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


# ---- The world ------------------------------------------------------------------------------------------------------


class _State:
    """What init made: the native world, its facts, and the group of all ranks."""

    def __init__(self, native, pid):
        self.native = native
        self.pid = pid
        self.facts = native.info()
        self.all = Group._of_native(_native.Group.all(native), 0)
        self.devices = {}  # by kind and index: whether they can be used


_state = None
_state_lock = threading.Lock()
_exit_hook_is_set = False


def init(rank=None, size=None, local_rank=None, local_size=None, rendezvous=None, job_key=None, **options):
    """Meets the other ranks. What is not given comes from the launcher's environment; without one, this is a job of one.

    `options` are knobs as `farandole config` lists them: init(transport="tcp", slice_bytes="1M"). A second call without
    shutdown does nothing. shutdown is called at exit.
    """
    global _state, _exit_hook_is_set
    with _state_lock:
        if _state is not None and _state.pid == os.getpid():
            return
        named = dict(rank=rank, size=size, local_rank=local_rank, local_size=local_size, rendezvous=rendezvous,
                     job_key=job_key)  # fmt: skip
        given = {key: value for key, value in named.items() if value is not None}
        knobs = {key: _knob(value) for key, value in options.items()}
        door = None if given else elastic_door.door()
        native = _native.World(given, knobs) if door is None else _next_generation(door, knobs)
        _state = _State(native, os.getpid())
        if not _exit_hook_is_set:
            atexit.register(shutdown)
            _exit_hook_is_set = True


def _next_generation(door, knobs):
    """The world of the next generation of an elastic job that comes about: ranks may be lost while they meet."""
    global _lost_rank
    while True:
        lost_rank, _lost_rank = _lost_rank, -1
        facts = door.next_world(lost_rank)
        try:
            return _native.World(facts, knobs)
        except (errors.PeerLostError, errors.ShutDownError, errors.TimeoutError, errors.TransportError) as error:
            note_loss(error)


_lost_rank = -1  # whom this rank saw lost last


def note_loss(error):
    """The next generation of an elastic job need not wait long for the rank that `error` says is lost."""
    global _lost_rank
    if isinstance(error, errors.PeerLostError):
        _lost_rank = error.culprit_rank


def _knob(value):
    return str(int(value)) if isinstance(value, bool) else str(value)


def shutdown():
    """Says good-bye. What is in flight fails with ShutDownError. Does nothing where there is no world."""
    global _state, _last_rank
    with _state_lock:
        state, _state = _state, None
    if state is not None:
        _last_rank = state.facts["rank"]
    if state is not None and state.pid == os.getpid():  # a forked child must leave its parent's world alone
        for hook in list(_shutdown_hooks):
            hook()
        state.native.close()


_shutdown_hooks = []


def on_shutdown(hook):
    """Lets another layer forget what belonged to the world that ends."""
    _shutdown_hooks.append(hook)


def is_initialized():
    return _state is not None and _state.pid == os.getpid()


def _world():
    if not is_initialized():
        raise errors.NotInitializedError("farandole has not been initialized; call init() first")
    return _state


def rank():
    return _world().facts["rank"]


_last_rank = 0


def last_rank():
    """This rank's number, also when its world has ended: a rank that leaves has callbacks then. 0 where there was none."""
    return rank() if is_initialized() else _last_rank


def size():
    return _world().facts["size"]


def local_rank():
    return _world().facts["local_rank"]


def local_size():
    return _world().facts["local_size"]


def cross_rank():
    return _world().facts["cross_rank"]


def cross_size():
    return _world().facts["cross_size"]


def info():
    """All facts of this rank: also its host, which launcher told, the rendezvous and the transports."""
    return dict(_world().facts)


def metrics():
    """Counters of this rank, as a dict."""
    return _world().native.metrics()


def start_timeline(file_path, mark_cycles=False):
    """Writes what becomes of each named operation to a file that chrome://tracing and Perfetto show.

    Rank 0 writes it; where the path contains %r, every rank writes its own, with its rank in that place.
    """
    _world().native.start_timeline(os.fspath(file_path), bool(mark_cycles))


def stop_timeline():
    """Completes the file. Does nothing where no timeline is being written."""
    _world().native.stop_timeline()


# ---- Memory ---------------------------------------------------------------------------------------------------------


def allocate(nbytes):
    """Zeroed memory that all ranks of the host map where they can, by the buffer protocol; freed when nothing looks into
    it any more, also after shutdown. Collectives on such memory need no copies between the ranks of a host."""
    return _native.Memory(_world().native, nbytes)


def empty(shape, dtype="float32"):
    """A NumPy array of zeros in such memory."""
    import numpy

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    array = numpy.dtype(dtype)
    count = math.prod(shape)
    if count == 0:
        return numpy.empty(shape, array)
    return numpy.frombuffer(allocate(count * array.itemsize), dtype=array, count=count).reshape(shape)


# ---- Devices --------------------------------------------------------------------------------------------------------


def open_device(kind, index):
    """Opens a device before it is first used; UnsupportedError says why it cannot be. `kind`: 2 for CUDA."""
    _world().native.open_device(kind, index)


def can_use_device(kind, index):
    """Whether tensors may stay on a device. Asked once; what speaks against it is a warning, once."""
    known = _world().devices
    if (kind, index) not in known:
        try:
            open_device(kind, index)
            known[kind, index] = True
        except errors.Error as error:
            warnings.warn(f"{error}; its tensors go through memory of the host", RuntimeWarning, stacklevel=2)
            known[kind, index] = False
    return known[kind, index]


# ---- Groups ---------------------------------------------------------------------------------------------------------


class Group:
    """A set of ranks. Making one is collective over its members; others may do it too, and get one they are not in."""

    def __init__(self, ranks):
        world = _world()
        members = [int(one) for one in ranks]
        if len(set(members)) != len(members) or not all(0 <= one < world.facts["size"] for one in members):
            raise errors.InvalidArgumentError(
                f"a group needs different ranks of 0..{world.facts['size'] - 1}, not {members}"
            )
        included = world.facts["rank"] in members
        self._set_up(_native.Group.create(world.native, members) if included else None, members)

    @classmethod
    def _of_native(cls, native, ident=None):
        group = cls.__new__(cls)
        group._set_up(native, native.ranks)
        return group

    def _set_up(self, native, ranks):
        self.native = native
        self.ranks = tuple(ranks)
        self.rank = native.rank if native else None
        self._unnamed = {}
        self._lent = set()

    @property
    def size(self):
        return len(self.ranks)

    @property
    def included(self):
        """Whether this rank is a member."""
        return self.rank is not None

    def split(self, color, key=0):
        """Collective: one new group a color, ordered by (key, rank). None for a negative color."""
        part = self.member().split(color, key)
        return Group._of_native(part) if part else None

    def free(self):
        if self.native:
            self.native.close()

    def member(self):
        """The native group; fails on a rank that is not in it."""
        if self.native is None:
            raise errors.InvalidArgumentError(
                f"rank {rank()} is not a member of the group of ranks {list(self.ranks)}"
            )
        return self.native

    def next_name(self, operation):
        """The name of an unnamed operation: counted for each group and operation, so that it is the same on all ranks
        that issue the operations of one group in one order."""
        number = self._unnamed.get(operation, 0)
        self._unnamed[operation] = number + 1
        return f"{operation}.noname.{number}"

    @contextlib.contextmanager
    def lend_name(self, operation):
        """The name of an unnamed operation that ends before its caller goes on: the same each time, so that steps which
        repeat are seen to repeat. A second thread in the same operation meanwhile gets one that is counted."""
        name = f"{operation}.noname"
        if name in self._lent:
            yield self.next_name(operation)
            return
        self._lent.add(name)
        try:
            yield name
        finally:
            self._lent.discard(name)

    def forget_names(self):
        """Counts from 0 again, as after a join: ranks that joined early have counted less than others."""
        self._unnamed.clear()

    def __repr__(self):
        return f"Group({list(self.ranks)})"


ProcessSet = Group


def world_group():
    """The group of all ranks."""
    return _world().all


# ---- Named operations -----------------------------------------------------------------------------------------------


class Handle:
    """An operation on its way. `wait` gives its result, or raises its failure; asking again tells the same."""

    def __init__(self, native, finish):
        self._native = native
        self._finish = finish
        self._result = None

    def done(self):
        return self._native is None or self._native.done()

    def wait(self, timeout=None):
        """`timeout` in seconds; TimeoutError leaves the operation in flight."""
        if self._native is not None:
            self._native.wait(-1.0 if timeout is None else float(timeout))
            self._result = self._finish(self._native)
            self._native = None
        return self._result


def _numpy():
    import numpy

    return numpy


def _as_array(tensor):
    """Lists and numbers become arrays; what holds memory already stays what it is."""
    if isinstance(tensor, (list, int, float, bool)):
        return _numpy().asarray(tensor)
    if type(tensor).__module__ == "numpy" and getattr(tensor, "ndim", 1) == 0:
        return _numpy().asarray(tensor)
    return tensor


def _numpy_dtype(code):
    name = _DTYPE_NAMES[code]
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return _numpy().dtype(getattr(ml_dtypes, name))
    return _numpy().dtype(name)


def _device_of(place):
    return (1, 0) if place is None else place[:2]


def _device_name(place):
    return "the CPU" if place is None else f"device {place[1]} of kind {place[0]}"


def _library_of(array):
    """The library that an array on a device belongs to: its results belong there too."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return importlib.import_module(type(array).__module__.partition(".")[0])


def _empty(tensor, shape, dtype, place):
    """Room for a result of that shape: an array of NumPy, or beside a tensor that lies on a device."""
    if place is None:
        return _numpy().empty(shape, _numpy_dtype(dtype))
    return _library_of(tensor).empty(shape, dtype=tensor.dtype)


class _Submitted:
    """One operation of a submission: where its memory is and how its result is found."""

    def __init__(self, kind, name, tensor, out=None, allocates=False, op=Op.SUM, root=0, prescale=1.0, postscale=1.0,
                 splits=None, priority=0):  # fmt: skip
        tensor = _as_array(tensor)
        pointer, self.dtype, self.shape, self.owner, self.place = _native.memory_of(tensor, False)
        self.tensor = tensor
        self.out, self.allocates, self.has_splits = out, allocates, splits is not None
        target, self.target_owner = 0, None
        if not allocates:
            if out is None:
                self.out = _empty(tensor, self.shape, self.dtype, self.place)
            target, dtype, shape, self.target_owner, place = _native.memory_of(self.out, True)
            if _device_of(place) != _device_of(self.place):
                raise errors.InvalidArgumentError(
                    f"{name}: out is on {_device_name(place)}, the input on {_device_name(self.place)}; give them one"
                )
            if dtype != self.dtype or tuple(shape) != tuple(self.shape):
                raise errors.InvalidArgumentError(
                    f"{name}: out has shape {list(shape)} and type {_DTYPE_NAMES[dtype]}, the input "
                    f"{list(self.shape)} and {_DTYPE_NAMES[self.dtype]}; they must be the same"
                )
        self.fields = (int(kind), name, pointer, self.dtype, self.shape, target, int(op), int(root), float(prescale),
                       float(postscale), splits, int(priority), self.place)  # fmt: skip

    def result(self, native, index):
        if not self.allocates:
            return self.out
        memory, shape, received = native.output(index)
        if memory is None:
            array = _empty(self.tensor, shape, self.dtype, self.place)
        elif self.place is not None:
            # A copy, for the core cannot know on which streams the array will be used, nor until when.
            array = _library_of(self.tensor).asarray(memory).view(self.tensor.dtype).reshape(shape).copy()
        else:
            array = _numpy().frombuffer(memory, _numpy_dtype(self.dtype)).reshape(shape)
        return (array, list(received)) if self.has_splits else array


def _submit(group, submitted, single=True):
    native = group.member()
    handle = _native.submit(native, [one.fields for one in submitted], submitted)

    def finish(done):
        results = [one.result(done, index) for index, one in enumerate(submitted)]
        return results[0] if single else results

    return Handle(handle, finish)


def _run(group, submitted):
    """Submits and waits, in the calling thread where possible."""
    done = _native.run(group.member(), [one.fields for one in submitted], submitted)
    return submitted[0].result(done, 0)


def _named(group, operation, name):
    return f"{operation}.{name}" if name is not None else group.next_name(operation)


def named_here(group, operation, name):
    """The same for an operation that ends before its caller goes on; a context."""
    return group.lend_name(operation) if name is None else contextlib.nullcontext(f"{operation}.{name}")


def _names(group, operation, name, count):
    base = _named(group, operation, name)
    return [f"{base}_{index + 1}of{count}" for index in range(count)]


def allreduce_async(tensor, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0, priority=0):
    """Starts combining the tensors of all ranks. out=tensor works in place. Operations meet by name, in any order."""
    group = group or world_group()
    return _submit(group, [_Submitted(Kind.ALLREDUCE, _named(group, "allreduce", name), tensor, out, op=op,
                                      prescale=prescale, postscale=postscale, priority=priority)])  # fmt: skip


def allreduce(tensor, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0, priority=0):
    """postscale * op over ranks of (prescale * tensor), on every rank."""
    group = group or world_group()
    with named_here(group, "allreduce", name) as name:
        return _run(group, [_Submitted(Kind.ALLREDUCE, name, tensor, out, op=op, prescale=prescale,
                                       postscale=postscale, priority=priority)])  # fmt: skip


def grouped_allreduce_async(tensors, op=Op.SUM, *, name=None, out=None, group=None, prescale=1.0, postscale=1.0,
                            priority=0):  # fmt: skip
    """Several tensors, all or nothing: none starts before all are ready on all ranks."""
    group = group or world_group()
    tensors = list(tensors)
    names = _names(group, "grouped_allreduce", name, len(tensors))
    outs = list(out) if out is not None else [None] * len(tensors)
    submitted = [
        _Submitted(Kind.ALLREDUCE, one_name, tensor, one_out, op=op, prescale=prescale, postscale=postscale,
                   priority=priority)
        for one_name, tensor, one_out in zip(names, tensors, outs)
    ]  # fmt: skip
    return _submit(group, submitted, single=False)


def grouped_allreduce(tensors, op=Op.SUM, **options):
    return grouped_allreduce_async(tensors, op, **options).wait()


def allgather_async(tensor, *, name=None, group=None):
    group = group or world_group()
    return _submit(group, [_Submitted(Kind.ALLGATHER, _named(group, "allgather", name), tensor, allocates=True)])


def allgather(tensor, **options):
    """The tensors of all ranks, joined along their first dimension, which may differ from rank to rank."""
    return allgather_async(tensor, **options).wait()


def grouped_allgather_async(tensors, *, name=None, group=None):
    group = group or world_group()
    tensors = list(tensors)
    names = _names(group, "grouped_allgather", name, len(tensors))
    submitted = [_Submitted(Kind.ALLGATHER, one, tensor, allocates=True) for one, tensor in zip(names, tensors)]
    return _submit(group, submitted, single=False)


def grouped_allgather(tensors, **options):
    return grouped_allgather_async(tensors, **options).wait()


def broadcast_async(tensor, root=0, *, name=None, out=None, group=None):
    group = group or world_group()
    one = _Submitted(Kind.BROADCAST, _named(group, "broadcast", name), tensor, out, root=root)
    return _submit(group, [one])


def broadcast(tensor, root=0, *, name=None, out=None, group=None):
    """The tensor of rank `root` of the group, on every rank. Other ranks' tensors tell shape and type."""
    group = group or world_group()
    with named_here(group, "broadcast", name) as name:
        return _run(group, [_Submitted(Kind.BROADCAST, name, tensor, out, root=root)])


def alltoall_async(tensor, splits=None, *, name=None, group=None):
    group = group or world_group()
    if splits is not None:
        splits = [int(rows) for rows in splits]
        if len(splits) != group.size:
            raise errors.InvalidArgumentError(
                f"alltoall: splits has {len(splits)} entries, the group {group.size} ranks; give one a rank"
            )
    one = _Submitted(Kind.ALLTOALL, _named(group, "alltoall", name), tensor, allocates=True, splits=splits)
    return _submit(group, [one])


def alltoall(tensor, splits=None, **options):
    """Sends splits[r] rows to each rank r. Returns what came, and with `splits` also how many rows from whom."""
    return alltoall_async(tensor, splits, **options).wait()


def reducescatter_async(tensor, op=Op.SUM, *, name=None, group=None, prescale=1.0, postscale=1.0):
    group = group or world_group()
    one = _Submitted(Kind.REDUCE_SCATTER, _named(group, "reducescatter", name), tensor, allocates=True, op=op,
                     prescale=prescale, postscale=postscale)  # fmt: skip
    return _submit(group, [one])


def reducescatter(tensor, op=Op.SUM, **options):
    """This rank's rows of the combined tensor. Where the rows do not divide evenly, the first ranks get one more."""
    return reducescatter_async(tensor, op, **options).wait()


def grouped_reducescatter_async(tensors, op=Op.SUM, *, name=None, group=None, prescale=1.0, postscale=1.0):
    group = group or world_group()
    tensors = list(tensors)
    names = _names(group, "grouped_reducescatter", name, len(tensors))
    submitted = [
        _Submitted(Kind.REDUCE_SCATTER, one, tensor, allocates=True, op=op, prescale=prescale, postscale=postscale)
        for one, tensor in zip(names, tensors)
    ]
    return _submit(group, submitted, single=False)


def grouped_reducescatter(tensors, op=Op.SUM, **options):
    return grouped_reducescatter_async(tensors, op, **options).wait()


def _barrier_fields(name):
    return (int(Kind.BARRIER), name, 0, 0, (), 0, 0, 0, 1.0, 1.0, None, 0, None)


def barrier_async(*, name=None, group=None):
    group = group or world_group()
    return Handle(_native.submit(group.member(), [_barrier_fields(_named(group, "barrier", name))], None),
                  lambda done: None)  # fmt: skip


def barrier(*, name=None, group=None):
    """Returns when all ranks of the group have come here."""
    group = group or world_group()
    with named_here(group, "barrier", name) as name:
        _native.run(group.member(), [_barrier_fields(name)], None)


def join_async(group=None):
    group = group or world_group()

    def finish(done):
        group.forget_names()
        return done.last_joined()

    return Handle(_native.join(group.member()), finish)


def join(group=None):
    """This rank has no more data: it contributes zeros to others' allreduces until all have joined. Returns who was
    last."""
    return join_async(group).wait()


# ---- Ordered communicators ------------------------------------------------------------------------------------------


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

    def _run(self, wait, result, collective, send=None, recv=None, count=0, counts=(), recv_counts=(), op=Op.SUM, root=0,
             **options):  # fmt: skip
        if "timeout" in options:
            options["timeout_ns"] = int(options.pop("timeout") * 1e9)
        count = 0 if counts else count
        request = self._native.call(int(collective), send, recv, count, list(counts), list(recv_counts), int(op),
                                    int(root), options, wait)  # fmt: skip
        return result if wait else Request(request, result)

    def _allreduce(self, wait, tensor, out=None, op=Op.SUM, **options):
        tensor = _as_array(tensor)
        out = _like(tensor) if out is None else out
        return self._run(wait, out, _Collective.ALLREDUCE, tensor, out, _same_count(tensor, out), op=op, **options)

    def _reduce(self, wait, tensor, out=None, op=Op.SUM, root=0, **options):
        tensor = _as_array(tensor)
        if self.rank == root and out is None:
            out = _like(tensor)
        return self._run(wait, out if self.rank == root else None, _Collective.REDUCE, tensor,
                         out if self.rank == root else None, _count(tensor), op=op, root=root, **options)  # fmt: skip

    def _broadcast(self, wait, tensor, root=0, **options):
        return self._run(wait, tensor, _Collective.BROADCAST, tensor, tensor, _count(tensor), root=root, **options)

    def _allgather(self, wait, tensor, out=None, counts=None, **options):
        tensor = _as_array(tensor)
        if counts is not None:
            out = _flat(tensor, sum(counts)) if out is None else out
        elif out is None:
            out = _stacked(tensor, self.size)
        return self._run(wait, out, _Collective.ALLGATHER, tensor, out, _count(tensor), counts or (), **options)

    def _reduce_scatter(self, wait, tensor, out=None, counts=None, op=Op.SUM, **options):
        tensor = _as_array(tensor)
        mine = counts[self.rank] if counts is not None else _share(_count(tensor), self.size, "reduce_scatter")
        out = _flat(tensor, mine) if out is None else out
        return self._run(wait, out, _Collective.REDUCE_SCATTER, tensor, out, mine, counts or (), op=op, **options)

    def _alltoall(self, wait, tensor, out=None, send_counts=None, recv_counts=None, **options):
        tensor = _as_array(tensor)
        if (send_counts is None) != (recv_counts is None):
            raise errors.InvalidArgumentError("alltoall: give both send_counts and recv_counts, or neither")
        if send_counts is None:
            each = _share(_count(tensor), self.size, "alltoall")
            out = _like(tensor) if out is None else out
            return self._run(wait, out, _Collective.ALLTOALL, tensor, out, each, **options)
        out = _flat(tensor, sum(recv_counts)) if out is None else out
        return self._run(wait, out, _Collective.ALLTOALL, tensor, out, 0, send_counts, recv_counts, **options)

    def _gather(self, wait, tensor, out=None, root=0, **options):
        tensor = _as_array(tensor)
        if self.rank == root and out is None:
            out = _stacked(tensor, self.size)
        out = out if self.rank == root else None
        return self._run(wait, out, _Collective.GATHER, tensor, out, _count(tensor), root=root, **options)

    def _scatter(self, wait, tensor, out, root=0, **options):
        tensor = _as_array(tensor) if self.rank == root else None
        return self._run(wait, out, _Collective.SCATTER, tensor, out, _count(out), root=root, **options)

    def _barrier(self, wait, **options):
        return self._run(wait, None, _Collective.BARRIER, **options)

    def send(self, tensor, peer):
        self._native.message(True, _as_array(tensor), peer, True)

    def recv(self, tensor, peer):
        self._native.message(False, tensor, peer, True)
        return tensor

    def isend(self, tensor, peer):
        return Request(self._native.message(True, _as_array(tensor), peer, False), None)

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


def _memory(tensor):
    return _native.memory_of(tensor, False)


def _count(tensor):
    count = 1
    for extent in _memory(tensor)[2]:
        count *= extent
    return count


def _same_count(tensor, out):
    count, room = _count(tensor), _count(out)
    if count != room:
        raise errors.InvalidArgumentError(f"the input has {count} elements, out has {room}; they must be the same")
    return count


def _share(count, parts, operation):
    if count % parts:
        raise errors.InvalidArgumentError(f"{operation}: {count} elements do not divide among {parts} ranks; give counts")
    return count // parts


def _like(tensor):
    _, dtype, shape, _, place = _memory(tensor)
    return _empty(tensor, shape, dtype, place)


def _flat(tensor, count):
    _, dtype, _, _, place = _memory(tensor)
    return _empty(tensor, (count,), dtype, place)


def _stacked(tensor, parts):
    _, dtype, shape, _, place = _memory(tensor)
    return _empty(tensor, (parts, *shape), dtype, place)


# ---- The library ----------------------------------------------------------------------------------------------------


def config():
    """The table of knobs with the values in force, and where each came from."""
    return _native.config()


def explain(collective, ranks, bytes, algorithm="auto"):
    """Which algorithm a collective of this size would run, why, and its steps."""
    return _native.explain(collective, ranks, bytes, algorithm)
