"""Exceptions: one class for each code of the C API, and the classes that programs written for Horovod catch.

And what the library's own threads call when ranks wait: a warning, and the stacks for `farandole where --stacks`. And
checks of arguments, without which the native module's conversions raise errors of pybind11.
"""

import builtins
import operator
import sys
import threading
import traceback
import warnings

_MOST_FRAMES = 30  # of one thread, the innermost ones


class StallWarning(UserWarning):
    """Operations wait for ranks that have not called them. The text names the operations and the ranks."""


def warn_of_stall(text):
    """Called in a thread of its own on each rank, for each stall of the job."""
    warnings.warn(text, StallWarning, stacklevel=2)


def stacks_of_threads():
    """Returns the stacks as lines, that of the main thread first. Called in a thread of its own, which is left out."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    main = threading.main_thread().ident
    lines = []
    for ident in sorted(frames, key=lambda ident: (ident != main, names.get(ident, ""))):
        stack = traceback.extract_stack(frames[ident])
        lines.append(f"thread {names.get(ident, 'without a name')}:")
        if len(stack) > _MOST_FRAMES:
            lines.append(f"  ... {len(stack) - _MOST_FRAMES} more frames")
        for frame in stack[-_MOST_FRAMES:]:
            code = f": {frame.line}" if frame.line else ""
            lines.append(f"  {frame.filename}:{frame.lineno} in {frame.name}{code}")
    return "\n".join(lines)


class Error(Exception):
    """A failure. `str(error)` is one sentence that names the cause and the remedy.

    Every rank that a failure reaches gets the same `culprit_rank` and the same text.

    `culprit_rank`: the rank at fault, in the world; -1 if there is none. `culprit_host`: its host.
    `operation`, `phase`, `group`: the operation that failed, its step, and its group; empty if unknown.
    """

    code = "INTERNAL"

    def __init__(self, text, culprit_rank=-1, culprit_host="", operation="", phase="", group=""):
        super().__init__(text)
        self.text = text
        self.culprit_rank = culprit_rank
        self.culprit_host = culprit_host
        self.operation = operation  # "allreduce 'grad_7'"
        self.phase = phase  # "ring, step 9: recv_reduce chunk 3 from rank 2"
        self.group = group

    def __str__(self):
        return self.text

    def __reduce__(self):
        return (_rebuild, (_home_of(type(self)), self.fields()))

    def fields(self):
        """The arguments of the constructor."""
        return (self.text, self.culprit_rank, self.culprit_host, self.operation, self.phase, self.group)


class InvalidArgumentError(Error, ValueError):
    """The caller passed invalid arguments. The call has had no effect."""

    code = "INVALID_ARGUMENT"


class MismatchError(Error):
    """Ranks submitted different operations. The operation has had no effect, and the group stays usable."""

    code = "MISMATCH"


class PeerLostError(Error):
    """A rank died, stopped or cannot be reached. `culprit_rank` is its number."""

    code = "PEER_LOST"


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed. The text names the missing ranks."""

    code = "TIMEOUT"


class AbortedError(Error):
    """A communicator was aborted, on this rank or on another one."""

    code = "ABORTED"


class ShutDownError(Error):
    """This world, or a rank that the operation needs, has been shut down."""

    code = "SHUT_DOWN"


class NotInitializedError(Error):
    """There is no world yet, or this process inherited it through fork()."""

    code = "NOT_INITIALIZED"


class UnsupportedError(Error):
    """The library does not support this."""

    code = "UNSUPPORTED"


class ResourceError(Error):
    """Memory, descriptors or files are exhausted or unavailable."""

    code = "RESOURCE"


class TransportError(Error):
    """The connection between ranks failed."""

    code = "TRANSPORT"


class AuthenticationError(Error):
    """The job keys of two ranks differ."""

    code = "AUTHENTICATION"


class InternalError(Error):
    """A bug of farandole. Please report it."""

    code = "INTERNAL"


class HorovodInternalError(RuntimeError):
    """A collective failed. Programs written for Horovod catch this class.

    The modules with Horovod's interface raise a class that is also the class of the error's code. Both `except
    HorovodInternalError` and `except farandole.PeerLostError` therefore catch a lost rank.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks join or leave, and an elastic job restarts its loop.

    `skip_sync`: ranks only leave, so no rank needs the state of another one.
    """

    def __init__(self, skip_sync=False):
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the binding was built for. farandole does not raise it."""

    def __init__(self, name, version, installed_version):
        super().__init__(f"built for {name} {version}, but {installed_version} is installed")
        self.name, self.version, self.installed_version = name, version, installed_version


CLASSES = {
    kind.code: kind
    for kind in (
        InvalidArgumentError,
        MismatchError,
        PeerLostError,
        TimeoutError,
        AbortedError,
        ShutDownError,
        NotInitializedError,
        UnsupportedError,
        ResourceError,
        TransportError,
        AuthenticationError,
        InternalError,
    )
}


def make(code, text, culprit_rank=-1, culprit_host="", operation="", phase="", group=""):
    """The exception for a code of the C API. The native module calls this and raises the result."""
    kind = CLASSES.get(code, InternalError)
    return kind(text, culprit_rank, culprit_host, operation, phase, group)


_also = {}


def also(kind, other):
    """The subclass of an error class that is also `other`. There is one for each pair."""
    if issubclass(kind, other):
        return kind
    if (kind, other) not in _also:
        _also[kind, other] = type(
            kind.__name__, (kind, other), {"__doc__": kind.__doc__, "__module__": kind.__module__}
        )
    return _also[kind, other]


def as_horovod(error):
    """The same failure with the class that programs written for Horovod expect: ValueError for invalid arguments, else
    HorovodInternalError.
    """
    if isinstance(error, (ValueError, HorovodInternalError)):
        return error
    return also(type(error), HorovodInternalError)(*error.fields())


def _home_of(kind):
    """The key of a class in pickles: its code, and the name of its second base, HorovodInternalError or ValueError."""
    other = next((base for base in (HorovodInternalError, ValueError) if issubclass(kind, base)), None)
    return kind.code, other is not None and other.__name__


def _rebuild(home, fields):
    code, other = home
    kind = CLASSES[code]
    if other:
        kind = also(kind, {"HorovodInternalError": HorovodInternalError, "ValueError": ValueError}[other])
    return kind(*fields)


_INT = range(-(2**31), 2**31)
SIZE = range(2**63)  # of numbers of bytes


def checked_number(value, name, allowed=_INT):
    """`value` as an int of the range that the core has for this argument."""
    try:
        index = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} is {value!r}; give a whole number") from None
    if index not in allowed:
        raise InvalidArgumentError(f"{name} is {index}; give a number of {allowed.start}..{allowed.stop - 1}")
    return index


def checked_text(value, name):
    """`value`, str or bytes, as text that C can hold: encodable, and without NUL, which would end it for the core."""
    if not isinstance(value, (str, bytes)):
        raise InvalidArgumentError(f"{name} has the type {type(value).__name__}; give text")
    shown = "(not shown)" if name == "job_key" else ascii(value)
    try:
        data = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{name} {shown} cannot be encoded as UTF-8; leave surrogates out") from None
    if b"\0" in data:
        raise InvalidArgumentError(f"{name} {shown} contains a NUL character; leave it out")
    return value
