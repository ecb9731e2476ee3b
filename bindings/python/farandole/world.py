"""The world of this process, which init creates and shutdown ends, and its groups of ranks."""

import atexit
import contextlib
import itertools
import numbers
import os
import threading

from . import _native, elastic_client, errors
from .rendezvous import world_of


class _State:
    """The result of init: the native world, its facts, and the group of all ranks."""

    def __init__(self, native, pid):
        self.native = native
        self.pid = pid
        self.facts = native.info()
        self.all = Group._of_native(_native.Group.all(native), 0)
        self.devices = {}  # (kind, index): whether the device can be used


_state = None
_state_lock = threading.Lock()
_exit_hook_is_set = False


def init(rank=None, size=None, local_rank=None, local_size=None, rendezvous=None, job_key=None, comm=None, **options):
    """Connects this rank with the other ranks of the job. Blocks until all have arrived.

    Arguments that are None come from the launcher's environment. Without a launcher the job has one rank. `rendezvous`
    is an address such as "tcp://host:port"; `job_key` is the secret that all ranks share. `options` are settings that
    `farandole config` lists: init(transport="tcp", slice_bytes="1M").

    `comm` is a communicator of mpi4py, in place of the arguments before it: its ranks are the world, in its order.

    A second call without shutdown does nothing. shutdown runs when the process exits. TimeoutError if ranks are missing
    after start_timeout_s seconds; the text names them. AuthenticationError if the keys of two ranks differ.
    """
    global _state, _exit_hook_is_set
    with _state_lock:
        if _state is not None and _state.pid == os.getpid():
            return
        numbers = dict(rank=rank, size=size, local_rank=local_rank, local_size=local_size)
        texts = dict(rendezvous=rendezvous, job_key=job_key)
        given = {key: errors.checked_number(value, key) for key, value in numbers.items() if value is not None}
        given |= {key: errors.checked_text(value, key) for key, value in texts.items() if value is not None}
        if comm is not None:
            if given:
                raise ValueError(f"init: comm gives all of a rank's place; leave out {', '.join(given)}")
            given = world_of(comm)
        knobs = {errors.checked_text(key, "option"): _knob(key, value) for key, value in options.items()}
        client = None if given else elastic_client.client()
        native = _native.World(given, knobs) if client is None else _next_generation(client, knobs)
        _state = _State(native, os.getpid())
        if client is not None:
            _export(_state.facts)
        if not _exit_hook_is_set:
            atexit.register(shutdown)
            _exit_hook_is_set = True


_EXPORTED = {"RANK": "rank", "SIZE": "size", "LOCAL_RANK": "local_rank", "LOCAL_SIZE": "local_size"}
_EXPORTED_TO_HOROVOD = {**_EXPORTED, "CROSS_RANK": "cross_rank", "CROSS_SIZE": "cross_size", "HOSTNAME": "host"}


def _export(facts):
    """Updates the launcher's variables: an elastic job gives this process another rank with each generation."""
    for prefix, names in (("FARANDOLE_", _EXPORTED), ("HOROVOD_", _EXPORTED_TO_HOROVOD)):
        os.environ.update({prefix + name: str(facts[fact]) for name, fact in names.items()})


def _next_generation(client, knobs):
    """Creates the world of the next generation of an elastic job. Tries again if ranks are lost meanwhile."""
    global _lost_rank
    while True:
        lost_rank, _lost_rank = _lost_rank, -1
        facts = client.next_world(lost_rank)
        try:
            return _native.World(facts, knobs)
        except (errors.PeerLostError, errors.ShutDownError, errors.TimeoutError, errors.TransportError) as error:
            note_loss(error)


_lost_rank = -1  # the rank whose loss this rank has observed last


def note_loss(error):
    """Remembers the rank that `error` reports as lost: the next generation of an elastic job does not wait for it."""
    global _lost_rank
    if isinstance(error, errors.PeerLostError):
        _lost_rank = error.culprit_rank


def _knob(name, value):
    return errors.checked_text(str(int(value) if isinstance(value, bool) else value), name)


def shutdown():
    """Ends the world. Operations in flight fail with ShutDownError. Does nothing if there is no world."""
    global _state, _last_rank
    with _state_lock:
        state, _state = _state, None
    if state is not None:
        _last_rank = state.facts["rank"]
    if state is not None and state.pid == os.getpid():  # a forked child must leave its parent's world alone
        for hook in list(_shutdown_hooks):
            hook()
        state.native.close()


def shrink(timeout=None):
    """Makes a world of the ranks that are left after a loss, in the same processes. They keep their order.

    Every rank that is left calls it, once an operation has raised PeerLostError. It needs neither a launcher nor a
    particular rank. Afterwards rank() and size() are those of the new world; groups, communicators and process sets
    must be made anew. If no rank is lost, the new world has the same ranks. `timeout`: seconds until all ranks that are
    left have called; None: start_timeout_s.

    TimeoutError if ranks that live did not call; the text names them. PeerLostError if this rank was stopped or cut off
    and the others continue without it. After either there is no world. UnsupportedError in an elastic job, whose
    launcher makes the next world (farandole.elastic.run). NotInitializedError before init.
    """
    global _state, _last_rank
    if timeout is not None and not (isinstance(timeout, numbers.Real) and 0 < timeout < 9e9):  # in ns it is an int64
        raise errors.InvalidArgumentError(f"shrink: timeout is {timeout!r}; give seconds above 0, or None")
    with _state_lock:
        state = current()
        if elastic_client.is_elastic():
            raise errors.UnsupportedError(
                "shrink: this job is elastic: its launcher makes the next world; use farandole.elastic.run"
            )
        for hook in list(_shutdown_hooks):
            hook()
        _last_rank, _state = state.facts["rank"], None
        try:
            _state = _State(state.native.shrink(-1.0 if timeout is None else float(timeout)), os.getpid())
        finally:
            if _state is None:
                state.native.close()
    for hook in list(_shrink_hooks):
        hook()


_shrink_hooks = []


def on_shrink(hook):
    """Registers `hook()`, which runs after shrink has made a world."""
    _shrink_hooks.append(hook)


_shutdown_hooks = []


def on_shutdown(hook):
    """Registers `hook()`, which runs before a world ends, so that another layer can drop what belonged to it."""
    _shutdown_hooks.append(hook)


def is_initialized():
    """Whether this process has a world. False in a forked child."""
    state = _state
    return state is not None and state.pid == os.getpid()


def current():
    """The result of init. NotInitializedError if there is no world."""
    state = _state  # read once: another thread may end the world meanwhile
    if state is None or state.pid != os.getpid():
        raise errors.NotInitializedError("farandole has not been initialized; call init() first")
    return state


def rank():
    """This rank's number: 0 to size() - 1. NotInitializedError before init."""
    return current().facts["rank"]


_last_rank = 0


def last_rank():
    """This rank's number in the current or last world; 0 before the first. Callbacks of on_leave use it."""
    return rank() if is_initialized() else _last_rank


def size():
    """The number of ranks. NotInitializedError before init."""
    return current().facts["size"]


def local_rank():
    """This rank's number among the ranks of its host. NotInitializedError before init."""
    return current().facts["local_rank"]


def local_size():
    """The number of ranks on this host. NotInitializedError before init."""
    return current().facts["local_size"]


def cross_rank():
    """This rank's number among the ranks with the same local rank, one on each host.

    NotInitializedError before init.
    """
    return current().facts["cross_rank"]


def cross_size():
    """The number of ranks with the same local rank, one on each host. NotInitializedError before init."""
    return current().facts["cross_size"]


def info():
    """All facts of this rank as a dict: its numbers, host, launcher, rendezvous address and transports."""
    return dict(current().facts)


def metrics():
    """The counters of this rank, as a dict."""
    return current().native.metrics()


def start_timeline(file_path, mark_cycles=False):
    """Starts a timeline of all named operations in a file for chrome://tracing and Perfetto.

    Rank 0 writes the file. If the path contains %r, every rank writes its own file, with its rank in place of %r.
    `mark_cycles` also marks the arrival of plans. ResourceError if the file cannot be created. InvalidArgumentError if
    a timeline is being written.
    """
    path = errors.checked_text(os.fsdecode(file_path), "file_path")
    current().native.start_timeline(path, bool(mark_cycles))


def stop_timeline():
    """Completes the timeline. Does nothing if no timeline is being written."""
    current().native.stop_timeline()


# ---- Groups ---------------------------------------------------------------------------------------------------------


class Group:
    """A set of ranks of the world, given as a list; their order is the order of ranks in the group.

    Creating a group is collective over its members. Other ranks may create it too, and get a group that does not
    include them. InvalidArgumentError if `ranks` is empty, repeats a rank, or has a rank that does not exist.
    """

    def __init__(self, ranks):
        world = current()
        size = world.facts["size"]
        members = [int(one) for one in itertools.islice(ranks, size + 1)]  # more than `size` ranks repeat one
        if not members:
            raise errors.InvalidArgumentError(
                f"a group needs at least one rank, and `ranks` is empty; give some of 0..{size - 1}"
            )
        if len(set(members)) != len(members) or not all(0 <= one < size for one in members):
            raise errors.InvalidArgumentError(f"a group needs different ranks of 0..{size - 1}, not {members}")
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
        self._unnamed = {}  # the next number, by operation
        self.counts = threading.RLock()  # held from the choice of a counted name to the submission
        self._joins = 0  # joins that this rank has started
        self.numbers = MessageNumbers()  # of the objects that its ranks send
        self._lent = {}  # a lock, by operation
        self._borrowers = {}  # the thread that has the lock, by operation

    @property
    def size(self):
        """The number of ranks in the group."""
        return len(self.ranks)

    @property
    def included(self):
        """Whether this rank is a member."""
        return self.rank is not None

    def split(self, color, key=0):
        """Collective over the group: creates one group for each color, with ranks ordered by (key, rank).

        None for a negative color.
        """
        part = self.member().split(errors.checked_number(color, "color"), errors.checked_number(key, "key"))
        return Group._of_native(part) if part else None

    def free(self):
        """Ends the group. Operations on it fail afterwards.

        InvalidArgumentError while another thread is in a call on it.
        """
        if self.native:
            self.native.close()

    def member(self):
        """The native group. InvalidArgumentError if this rank is not a member."""
        if self.native is None:
            raise errors.InvalidArgumentError(f"rank {rank()} is not a member of the group of ranks {list(self.ranks)}")
        return self.native

    def naming(self, operation, name):
        """A context whose value is the full name of an asynchronous operation.

        It is built from the caller's name, or from a counter if `name` is None. If the context ends with an exception,
        nothing was submitted and the counter's number is used again.
        """
        return _Naming(self, operation, name)

    def blocking_name(self, operation, name):
        """A context like naming(), for an operation that ends before its caller continues."""
        return self.lend_name(operation) if name is None else self.naming(operation, name)

    @contextlib.contextmanager
    def lend_name(self, operation):
        """A context with the name of an unnamed operation that ends before its caller continues.

        The name is the same each time, so that repeated steps submit the same names. Such operations of one kind run
        one after the other: a second thread waits until the first one's has ended, so that the n-th call of a rank
        matches the n-th of the others however the threads are scheduled. A signal handler, or another callback that
        runs in the thread of such an operation, gets a counted name.
        """
        lock = self._lent.setdefault(operation, threading.Lock())
        me = threading.get_ident()
        if self._borrowers.get(operation) == me:
            naming = self.naming(operation, None)
            with naming as counted:
                pass  # `counts` must not be held while the operation waits for other ranks
            try:
                yield counted
            except BaseException:
                naming.take_back()
                raise
            return
        with lock:
            self._borrowers[operation] = me
            try:
                yield f"{operation}.noname"
            finally:
                del self._borrowers[operation]

    def start_names_after_join(self):
        """Counts from 0 again, with other names: ranks that join early have counted less than others.

        It belongs to the call that starts a join, not to its end, which each rank observes at another time.
        """
        self._unnamed.clear()
        self._joins += 1

    def __repr__(self):
        return f"Group({list(self.ranks)})"


class _Naming:
    """The context of Group.naming.

    Each group counts the unnamed operations of each kind. Names therefore match on all ranks that submit the operations
    of a group in the same order. Until the operation is submitted or refused, no other thread takes a number: else two
    threads could take the same one, and whether that of a refused call is used again would depend on the scheduler.
    """

    __slots__ = ("group", "operation", "name", "number")

    def __init__(self, group, operation, name):
        self.group, self.operation, self.name = group, operation, name

    def __enter__(self):
        if self.name is not None:
            return f"{self.operation}.{self.name}"
        self.group.counts.acquire()
        counters = self.group._unnamed
        self.number = counters.get(self.operation, 0)
        counters[self.operation] = self.number + 1
        period = f".after_join_{self.group._joins}" if self.group._joins else ""
        return f"{self.operation}.noname{period}.{self.number}"

    def __exit__(self, kind, *_):
        if self.name is None:
            if kind is not None:
                self.take_back()
            self.group.counts.release()

    def take_back(self):
        """Lets the next operation have the number, unless a signal handler has taken the one after it meanwhile."""
        with self.group.counts:
            if self.group._unnamed.get(self.operation) == self.number + 1:
                self.group._unnamed[self.operation] = self.number


class MessageNumbers:
    """Numbers the sealed messages of a group. A receiver accepts each number of a sender once.

    A recorded message that comes again has a number that was there before.
    """

    _WINDOW = 1 << 14  # numbers; calls of several threads may arrive in another order than they were made

    def __init__(self):
        self._lock = threading.Lock()
        self._sent = 0
        self._seen = {}  # by sender: the largest number, and those of the window

    def next_number(self):
        with self._lock:
            self._sent += 1
            return self._sent

    def accept(self, number, sender):
        """AuthenticationError if a message of this number has arrived before."""
        with self._lock:
            largest, seen = self._seen.setdefault(sender, (0, set()))
            if number in seen or number <= largest - self._WINDOW:
                raise errors.AuthenticationError(
                    f"message {number} of rank {sender} has arrived before: something on the way repeats messages"
                )
            seen.add(number)
            if number > largest:
                if len(seen) > 2 * self._WINDOW:
                    seen = {one for one in seen if one > number - self._WINDOW}
                self._seen[sender] = (number, seen)


def member_names(base, count):
    """The names of `count` operations that are submitted as one group."""
    return [f"{base}_{index + 1}of{count}" for index in range(count)]


ProcessSet = Group


def chosen_group(group):
    """The group that an argument names; None: all ranks."""
    if group is None:
        return world_group()
    if not isinstance(group, Group):
        raise errors.InvalidArgumentError(f"group={group!r}: give a farandole.Group, or None for all ranks")
    return group


def world_group():
    """The group of all ranks. NotInitializedError before init."""
    return current().all
