"""The functions that programs written for Horovod share for all frameworks: init, ranks, reductions, sets."""

import hashlib
import numbers

from . import core, errors, objects

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

# Horovod's reductions are plain numbers.
Average = 0  #: The sum over ranks divided by their number. Integers are rounded toward zero.
Sum = 1  #: The sum over ranks.
Adasum = 2  #: Adaptive summation: adds orthogonal parts of gradients and averages parallel ones.
Min = 3  #: The smallest value over ranks.
Max = 4  #: The largest value over ranks.
Product = 5  #: The product over ranks.

_OPS = {
    Average: int(core.Op.AVERAGE),
    Sum: int(core.Op.SUM),
    Adasum: int(core.Op.ADASUM),
    Min: int(core.Op.MIN),
    Max: int(core.Op.MAX),
    Product: int(core.Op.PRODUCT),
}


def checked_op(op):
    """Returns the reduction. InvalidArgumentError if it is none of those above."""
    if type(op) is int and op in _OPS:
        return op
    if isinstance(op, core.Op):
        raise errors.InvalidArgumentError(
            f"op=farandole.{op.name} is an operator of farandole's own functions and not a reduction here; give "
            "farandole.torch's Average, Sum, Adasum, Min, Max or Product, such as op=hvd.Sum"
        )
    if not isinstance(op, numbers.Integral) or op not in _OPS:
        raise errors.InvalidArgumentError(
            f"op={op!r} is not a reduction; give Average, Sum, Adasum, Min, Max or Product, such as op=hvd.Sum"
        )
    return int(op)


def native_op(op):
    """The C API's number of a reduction."""
    number = _OPS.get(op)
    return _OPS[checked_op(op)] if number is None else number


def chosen_op(average, op):
    """The reduction of a call that gives `op` or, in older programs, `average`. ValueError if it gives both."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return checked_op(op)
    return Average if average is None or average else Sum


def check_adasum(process_set):
    """NotImplementedError if Adasum is impossible: it combines all ranks in pairs and needs a power of 2."""
    if process_set is not global_process_set:
        raise NotImplementedError(f"Adasum does not support non-global process sets yet; {process_set} was given")
    if process_set.size() & (process_set.size() - 1):
        raise NotImplementedError(
            f"Running Adasum with {process_set.size()} ranks: it combines them in pairs and needs a power of 2"
        )


# ---- Process sets ---------------------------------------------------------------------------------------------------


class ProcessSet:
    """A set of ranks to which operations can be restricted, given as a list of ranks of the world.

    It has an id after init or add_process_set has registered it. ValueError if the ranks are not integers.
    """

    def __init__(self, ranks_or_comm):
        ranks = list(ranks_or_comm) if hasattr(ranks_or_comm, "__iter__") else None
        if ranks is None or not all(isinstance(rank, numbers.Integral) for rank in ranks):
            raise ValueError(f"ProcessSet needs the ranks as integers, not {ranks_or_comm!r}")
        if not ranks:
            raise errors.InvalidArgumentError("ProcessSet: ranks_or_comm is empty; give at least one rank")
        self._set_up(sorted(map(int, ranks)), None)

    def _set_up(self, ranks, process_set_id):
        self.ranks = ranks
        self.mpi_comm = None
        self.process_set_id = process_set_id
        self._group = None

    def size(self):
        """The number of ranks in the set; None before registration."""
        return None if self._group is None else self._group.size

    def rank(self):
        """This rank's number in the set; None before registration. ValueError if the set does not include it."""
        if self._group is None:
            return None
        if not self._group.included:
            raise ValueError("Process is not part of provided process set.")
        return self._group.rank

    def included(self):
        """Whether the set includes this rank; None before registration."""
        return None if self._group is None else self._group.included

    def group(self, operation):
        """The group of the set.

        InvalidArgumentError, a ValueError that begins with `operation`, if this rank cannot use it.
        """
        if self._group is None:
            raise errors.InvalidArgumentError(
                f"{operation}: process set {self} does not exist, or has not been registered; "
                "give it to init(process_sets=...) or add_process_set"
            )
        if not self._group.included:
            raise errors.InvalidArgumentError(
                f"{operation}: Rank {core.rank()} is not a member of the provided process set {self}."
            )
        return self._group

    def root(self, root_rank, operation):
        """The number in the set of a rank of the world. InvalidArgumentError if it is not a member."""
        group = self.group(operation)
        if root_rank not in group.ranks:
            raise errors.InvalidArgumentError(
                f"{operation} received invalid root rank {root_rank} for provided process set {self}."
            )
        return group.ranks.index(root_rank)

    def __str__(self):
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class _GlobalProcessSet(ProcessSet):
    """All ranks. Its group is the world's group."""

    def __init__(self):
        self._set_up([], 0)  # init sets its ranks

    def group(self, operation):
        if self._group is None:
            raise errors.as_horovod(errors.NotInitializedError(_NOT_INITIALIZED))
        return self._group


_NOT_INITIALIZED = "farandole has not been initialized; use hvd.init()."

#: The process set of all ranks.
global_process_set = _GlobalProcessSet()
_process_sets = {0: global_process_set}
_free_ids = []  # of removed sets, oldest first
_watchers = []


def watch_process_sets(watcher):
    """Calls watcher(id, process_set) for each registered set, now and later, and watcher(id, None) before a set ends.

    For compiled operations, which find the group of a set by its id when they run.
    """
    _watchers.append(watcher)
    for number, process_set in _process_sets.items():
        if process_set._group is not None:
            watcher(number, process_set)


def _tell_watchers(process_set_id, process_set):
    for watcher in _watchers:
        watcher(process_set_id, process_set)


def add_process_set(process_set):
    """Registers a ProcessSet, or a list of ranks, and returns the ProcessSet. Collective over all ranks.

    Other operations may be in flight meanwhile. ValueError if a set of the same ranks exists or a rank does not exist.
    MismatchError if ranks add different sets.
    """
    world = global_process_set.group("add_process_set")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None or any(process_set.ranks == one.ranks for one in _process_sets.values()):
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    if len(set(process_set.ranks)) != len(process_set.ranks) or not set(process_set.ranks) <= set(world.ranks):
        raise ValueError(f"{process_set} needs different ranks of 0..{world.size - 1}")
    _agree(world, "add_process_set", str(process_set.ranks))
    process_set._group = core.Group(process_set.ranks)
    process_set.process_set_id = _free_ids.pop(0) if _free_ids else len(_process_sets)
    _process_sets[process_set.process_set_id] = process_set
    _tell_watchers(process_set.process_set_id, process_set)
    return process_set


def remove_process_set(process_set):
    """Removes a set; collective over all ranks. False for the global set and for sets that are not registered."""
    if process_set is global_process_set or _process_sets.get(process_set.process_set_id) is not process_set:
        return False
    _agree(global_process_set.group("remove_process_set"), "remove_process_set", str(process_set.process_set_id))
    del _process_sets[process_set.process_set_id]
    _free_ids.append(process_set.process_set_id)
    _tell_watchers(process_set.process_set_id, None)
    process_set._group.free()
    process_set._group = process_set.process_set_id = None
    return True


def _agree(world, what, text):
    """Blocks until all ranks have passed the same `text`. MismatchError, a ValueError, if they differ."""
    hashes = objects.allgather_bytes(hashlib.sha256(text.encode()).digest(), f"farandole.{what}", world)
    others = [rank for rank, one in enumerate(hashes) if one != hashes[world.rank]]
    if others:
        raise errors.also(errors.MismatchError, ValueError)(
            f"{what}: rank {world.rank} passes {text}, and {'ranks' if len(others) > 1 else 'rank'} "
            f"{', '.join(map(str, others))} something else; all ranks must add and remove the same sets in one order"
        )


# ---- The world ------------------------------------------------------------------------------------------------------


def init(comm=None, process_sets=None):
    """Connects this rank with the other ranks and blocks until all have arrived. A second call does nothing.

    `process_sets` are registered in their order. "dynamic" is accepted and has no effect: sets can be added at any
    time. `comm` is None, the list of all ranks, or a communicator of mpi4py, whose ranks are the world. ValueError if
    the initialization fails; it is also the farandole.Error of the cause.
    """
    if core.is_initialized():
        return
    ranks = comm if isinstance(comm, (list, tuple)) else None
    try:
        core.init(comm=comm if ranks is None else None)
    except errors.Error as error:
        raise errors.also(type(error), ValueError)(f"farandole initialization failed: {error.text}",
                                                   *error.fields()[1:]) from error  # fmt: skip
    if ranks is not None and sorted(ranks) != list(range(core.size())):
        size = core.size()
        core.shutdown()
        raise ValueError(f"comm={list(ranks)} is not all {size} ranks of the job; give process_sets instead")
    _take_world()
    if process_sets is not None and process_sets != "dynamic":
        for number, process_set in enumerate(process_sets):
            try:
                add_process_set(process_set)
            except ValueError as error:
                raise ValueError(f"process_sets, entry {number}: {error}") from error


def _take_world():
    """Makes the global set that of the present world."""
    global_process_set._group = core.world_group()
    global_process_set.ranks = list(range(core.size()))
    _tell_watchers(0, global_process_set)


def _forget():
    """Drops all sets when a world ends. They must be registered again."""
    for number, process_set in _process_sets.items():
        if process_set._group is not None:
            _tell_watchers(number, None)
        process_set._group = None
        if process_set is not global_process_set:
            process_set.process_set_id = None
    _process_sets.clear()
    _process_sets[0] = global_process_set
    _free_ids.clear()
    global_process_set.ranks = []


core.on_shutdown(_forget)
core.on_shrink(_take_world)

shutdown = core.shutdown
is_initialized = core.is_initialized


def _fact(name, text):
    def fact():
        if not core.is_initialized():
            raise errors.also(errors.NotInitializedError, ValueError)(_NOT_INITIALIZED)
        return core.info()[name]

    fact.__name__ = fact.__qualname__ = name
    fact.__doc__ = f"{text} ValueError before init."
    return fact


rank = _fact("rank", "This rank's number: 0 to size() - 1.")
size = _fact("size", "The number of ranks.")
local_rank = _fact("local_rank", "This rank's number among the ranks of its host.")
local_size = _fact("local_size", "The number of ranks on this host.")
cross_rank = _fact("cross_rank", "This rank's number among the ranks with the same local rank, one on each host.")
cross_size = _fact("cross_size", "The number of ranks with the same local rank, one on each host.")
is_homogeneous = _fact("is_homogeneous", "Whether all hosts have the same number of ranks.")


def _absent(name, what):
    def built():
        return False

    built.__name__ = built.__qualname__ = name
    built.__doc__ = f"False: farandole does not use {what}."
    return built


mpi_enabled, mpi_built = _absent("mpi_enabled", "MPI"), _absent("mpi_built", "MPI")
gloo_enabled, gloo_built = _absent("gloo_enabled", "Gloo"), _absent("gloo_built", "Gloo")
ddl_built, ccl_built = _absent("ddl_built", "IBM's DDL"), _absent("ccl_built", "oneCCL")
cuda_built = _absent("cuda_built", "Horovod's own CUDA code")
rocm_built = _absent("rocm_built", "ROCm")


def mpi_threads_supported():
    """Raises ValueError, as Horovod does without MPI."""
    size()  # raises before init
    raise ValueError("Horovod MPI is not enabled: farandole has its own transports; test mpi_enabled() first")


def start_timeline(file_path, mark_cycles=False):
    """Starts a timeline of all operations, as `farandole.start_timeline` does. HOROVOD_TIMELINE need not be set.

    ValueError before init, or if the file cannot be created.
    """
    size()  # raises before init
    try:
        core.start_timeline(file_path, mark_cycles)
    except errors.ResourceError as error:
        raise errors.also(type(error), ValueError)(*error.fields()) from error


def stop_timeline():
    """Completes the timeline. Does nothing if no timeline is being written. ValueError before init."""
    size()
    core.stop_timeline()


def nccl_built():
    """0, the number for a build without NCCL: farandole loads NCCL at run time."""
    return 0


# ---- Compression, for the modules of each framework ------------------------------------------------------------------


class NoneCompressor:
    """Sends tensors without compression."""

    @staticmethod
    def compress(tensor):
        """Returns the tensor and None."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the tensor."""
        return tensor


def half_compressor(module, name, text, shrink, cast):
    """Returns a compressor class, which pickle finds as Compression.`name` in the module of that name.

    `shrink(tensor)`: the tensor to send, and its own type. `cast(tensor, type)`: the tensor in that type.
    """

    class Compressor:
        @staticmethod
        def compress(tensor):
            return shrink(tensor)

        @staticmethod
        def decompress(tensor, ctx):
            return cast(tensor, ctx)

    Compressor.__doc__ = text
    Compressor.__module__ = module
    Compressor.__qualname__ = f"Compression.{name}"
    return Compressor
