"""farandole.elastic: jobs that lose ranks, get replacements, and continue from the last commit.

state = farandole.elastic.ObjectState(step=0)

@farandole.elastic.run
def train(state):
    while state.step < 100:
        ...
        state.step += 1
        state.commit()

train(state)
"""

import copy
import functools
import logging
import time
import zlib

from . import basics, core, elastic_client, errors, objects, termination
from .errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run"]

_log = logging.getLogger("farandole.elastic")

# After SIGTERM: how long a rank waits for its launcher's report that ranks leave.
_LAUNCHER_REPORTS_S = 2.0

# After these the world has ended or is unusable. A mismatch is excluded, because it would recur after each restore.
_LOSSES = (errors.PeerLostError, errors.TimeoutError, errors.AbortedError, errors.ShutDownError, errors.TransportError)


def run(func):
    """Wraps `func(state, ...)` so that it restarts when ranks are lost or join.

    The wrapper synchronises the state and calls func. If a collective fails because a rank was lost, the state is
    restored to the last commit. If ranks join or leave (see State.check_host_updates), the state stays as it is. In
    both cases the remaining ranks and the new ones form another world, the state's reset callbacks run on the remaining
    ranks, and func is called again.

    A rank that is removed exits with code 0. A rank that receives SIGTERM continues to its next commit and exits there:
    see on_leave. If its launcher has not received it too, the rank is replaced, as a lost one is. Without a launcher
    that replaces ranks (`farandole run --min-np N`, `--nnodes MIN:MAX`), failures are raised.

    A program should call one elastic function once: a new rank begins with the first call of its program. If the other
    ranks are in a later one, all raise MismatchError.
    """

    @functools.wraps(func)
    def elastic(state, *args, **kwargs):
        elastic_client.calls[-1] += 1
        handles_sigterm = elastic_client.is_elastic() and termination.install_handler()
        try:
            return attempt(state, *args, **kwargs)
        finally:
            if handles_sigterm:
                termination.restore_handler()

    def attempt(state, *args, **kwargs):
        call = tuple(elastic_client.calls)
        has_state = must_reset = may_leave = False
        elastic_client.note_state(False)
        while True:
            try:
                if must_reset:
                    if may_leave:
                        _leave_without_launcher()
                    _join_next_world()
                    state.on_reset()
                    must_reset = False
                if _any_rank_lacks_state(not has_state, call):
                    state.sync()
                elastic_client.note_state(True)
                elastic_client.calls.append(0)
                try:
                    return func(state, *args, **kwargs)
                finally:
                    del elastic_client.calls[len(call) :]
            except HostsUpdatedInterrupt as interrupt:
                has_state, may_leave = interrupt.skip_sync, isinstance(interrupt, _RanksLeave)
            except Exception as error:
                if not elastic_client.is_elastic() or not _is_loss(error):
                    raise
                _log.warning("restoring the last commit: %s", error)
                core.note_loss(error)
                state.restore()
                has_state = may_leave = False
            must_reset = True

    return elastic


def _any_rank_lacks_state(lacks, call):
    """Whether a rank of this world lacks the state of rank 0; the same on all ranks.

    The ranks decide it together. A rank that was told of ranks that leave cannot know who joins: a new rank may have
    become ready in between. MismatchError on all ranks if they are not in the same `call` of an elastic function: they
    would wait for each other without end.
    """
    if not elastic_client.is_elastic():
        return lacks
    own = zlib.crc32(repr(call).encode()).to_bytes(4, "little")
    numbers = [bool(lacks), *own, *(255 - one for one in own)]
    any_lacks, *largest = objects.maxima(numbers, "farandole.elastic.lacks_state", core.world_group())
    if any(one + other != 255 for one, other in zip(largest[:4], largest[4:])):
        raise _calls_differ(call)
    return bool(any_lacks)


def _calls_differ(call):
    of_rank = objects.allgather_object(call, "farandole.elastic.calls", core.world_group())
    other = next(rank for rank, one in enumerate(of_rank) if one != of_rank[0])
    return errors.MismatchError(
        f"elastic.run: rank 0 is in call {_words(of_rank[0])} of an elastic function, and rank {other} in call "
        f"{_words(of_rank[other])}, because a new rank begins with the first call, and a rank that is lost at the end "
        "of a call finds some ranks in the next one; train all phases in one elastic function, with the phase as a "
        "part of its state, or begin again from a checkpoint (--max-restarts)"
    )


def _words(call):
    return ".".join(map(str, call))


def _is_loss(error):
    if isinstance(error, errors.Error):
        return isinstance(error, _LOSSES) and error is not _end_of_job
    return isinstance(error, HorovodInternalError)  # raised by the program itself


_end_of_job = None


class _RanksLeave(HostsUpdatedInterrupt):
    """Some ranks have received SIGTERM, and rank 0 has no report of their launcher."""


def _leave_without_launcher():
    """Leaves if this rank received SIGTERM and its launcher did not: the launcher would give it a place in a new world.

    A launcher that received SIGTERM has reported it before its ranks received it, and dismisses those that leave.
    """
    basics.shutdown()
    if termination.is_requested() and not elastic_client.client().has_reported_removal(_LAUNCHER_REPORTS_S):
        termination.leave()


def _join_next_world():
    global _end_of_job
    basics.shutdown()
    try:
        basics.init()
    except elastic_client.RankRemoved as error:
        termination.leave_if_requested()
        _log.warning("%s, and ends", error)
        raise SystemExit(0) from None
    except errors.Error as error:
        termination.leave_if_requested()
        _end_of_job = error  # no generation follows
        raise


class State:
    """The base class of elastic states: what all ranks have in common at each commit.

    Subclasses define save(), restore() and sync().
    """

    def __init__(self, **_):
        self._reset_callbacks = []
        self._updates = 0

    def register_reset_callbacks(self, callbacks):
        """Registers functions without arguments that run after a new world is formed.

        They can, for example, set a learning rate by the number of ranks. They must not call collectives: ranks that
        join do not run them.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self):
        """Runs reset() and the reset callbacks. The wrapper of run() calls it after a new world is formed."""
        self._updates = 0
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp, update_res):
        """Records a change that the launcher reported: elastic_client.ADDED, REMOVED or both."""
        self._updates |= update_res

    def commit(self):
        """Saves the state for a restore, and checks whether ranks join or leave.

        All ranks must call it at the same point. After a loss the state returns to the last commit.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self):
        """Raises HostsUpdatedInterrupt on all ranks if the launcher has reported to rank 0 that ranks join or leave.

        It does so too if a rank has received SIGTERM. All ranks must call it at the same point. It saves nothing and is
        therefore cheaper than commit.
        """
        client = elastic_client.client()
        if client is None:
            termination.leave_if_requested()
        else:
            changes = client.membership_changes()
            if changes:
                self.on_hosts_updated(time.time(), changes)
            of_rank_0 = min(self._updates, 255) if basics.rank() == 0 else 0
            own = [of_rank_0, termination.is_requested()]
            self._updates, leaves = objects.maxima(own, "farandole.elastic.updates", core.world_group())
            if leaves and not self._updates & elastic_client.REMOVED:
                self._updates = 0
                raise _RanksLeave(True)
        updates, self._updates = self._updates, 0
        if updates:
            raise HostsUpdatedInterrupt(updates == elastic_client.REMOVED)

    def save(self):
        """Saves the state in memory."""
        raise NotImplementedError

    def restore(self):
        """Restores the state of the last save()."""
        raise NotImplementedError

    def sync(self):
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self):
        """Called after a new world is formed, before the reset callbacks. Does nothing by default."""


def _broadcast_object(thing):
    return objects.broadcast_object(thing, 0, "farandole.elastic.state", core.world_group())


class ObjectState(State):
    """Plain Python values as attributes. They are pickled for sync() and copied deeply by save().

    Every public attribute is state, whether the constructor or a later assignment sets it. The first assignment of an
    attribute also saves its value. Names that begin with an underscore, and names that the class defines, are not
    state. `bcast_object(value)` returns rank 0's value on all ranks; the default is farandole's own. get_rank is
    ignored.

    TypeError if a value cannot be copied.
    """

    def __init__(self, bcast_object=None, get_rank=None, **attributes):
        self._bcast_object = bcast_object or _broadcast_object
        super().__init__()
        self._saved = {}  # the value of each attribute at the last save; from here on public attributes are state
        for name, value in attributes.items():
            setattr(self, name, value)

    def _is_state(self, name):
        return not name.startswith("_") and "_saved" in self.__dict__ and not hasattr(type(self), name)

    def __setattr__(self, name, value):
        if self._is_state(name) and name not in self._saved:
            self._saved[name] = _copy_of(name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        object.__delattr__(self, name)
        self.__dict__.get("_saved", {}).pop(name, None)

    def _values(self):
        return {name: getattr(self, name) for name in self._saved}

    def _set(self, values):
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def save(self):
        """Saves a deep copy of each attribute in memory. TypeError if one cannot be copied."""
        self._saved = {name: _copy_of(name, value) for name, value in self._values().items()}

    def restore(self):
        """Restores the attributes of the last save()."""
        self._set(copy.deepcopy(self._saved))

    def sync(self):
        """Gives all ranks the attributes of rank 0, and deletes those that rank 0 does not have.

        Every rank takes part, also one without attributes, because a rank may have started before the others assigned
        theirs.
        """
        values = self._bcast_object(self._values())
        for name in self._saved.keys() - values.keys():
            delattr(self, name)
        self._saved = dict.fromkeys(values)
        self._set(values)
        ObjectState.save(self)


def _copy_of(name, value):
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"state.{name}: a {type(value).__name__} cannot be saved, because it cannot be copied ({error}); assign "
            f"something that can be copied, or call it state._{name}, which is not saved"
        ) from error
