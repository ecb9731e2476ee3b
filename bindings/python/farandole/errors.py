"""What can go wrong: one class a code of the C API, and the classes that programs written for Horovod catch."""

import builtins


class Error(Exception):
    """A failure with its whole story. `str(error)` is one sentence: who, what, what to do.

    Every rank that a failure touches gets the same culprit and sentence.
    """

    code = "INTERNAL"

    def __init__(self, text, culprit_rank=-1, culprit_host="", operation="", phase="", group=""):
        super().__init__(text)
        self.text = text
        self.culprit_rank = culprit_rank  # in the world; -1 where nobody in particular is at fault
        self.culprit_host = culprit_host
        self.operation = operation  # "allreduce 'grad_7'"
        self.phase = phase  # "ring, step 9: recv_reduce chunk 3 from rank 2"
        self.group = group

    def __str__(self):
        return self.text

    def __reduce__(self):
        return (_rebuild, (_home_of(type(self)), self.fields()))

    def fields(self):
        return (self.text, self.culprit_rank, self.culprit_host, self.operation, self.phase, self.group)


class InvalidArgumentError(Error, ValueError):
    """The caller erred; nothing happened."""

    code = "INVALID_ARGUMENT"


class MismatchError(Error):
    """Ranks disagree about an operation; nothing happened and the group lives on."""

    code = "MISMATCH"


class PeerLostError(Error):
    """A rank died, stopped or cannot be reached; `culprit_rank` names it."""

    code = "PEER_LOST"


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed; the text names who is missing."""

    code = "TIMEOUT"


class AbortedError(Error):
    """A communicator was aborted, here or on another rank."""

    code = "ABORTED"


class ShutDownError(Error):
    """This world, or a rank that is needed, has been shut down."""

    code = "SHUT_DOWN"


class NotInitializedError(Error):
    """There is no world yet, or it was inherited through fork()."""

    code = "NOT_INITIALIZED"


class UnsupportedError(Error):
    """The library cannot do this."""

    code = "UNSUPPORTED"


class ResourceError(Error):
    """Memory, descriptors or files ran out."""

    code = "RESOURCE"


class TransportError(Error):
    """What joins the ranks failed."""

    code = "TRANSPORT"


class AuthenticationError(Error):
    """The job keys of two ranks differ."""

    code = "AUTHENTICATION"


class InternalError(Error):
    """A bug of farandole: please report it."""

    code = "INTERNAL"


class HorovodInternalError(RuntimeError):
    """A collective failed, as programs written for Horovod expect to be told.

    What the Horovod-shaped modules raise is this class and the class of its code: both `except HorovodInternalError`
    and `except farandole.PeerLostError` catch a lost rank.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks come or go; an elastic job begins its loop again. skip_sync: they only go, so nobody needs the state."""

    def __init__(self, skip_sync=False):
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is not the one that a binding was built for. farandole is built for none, and raises it never."""

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
    """The exception of a code: the native module raises what this returns."""
    kind = CLASSES.get(code, InternalError)
    return kind(text, culprit_rank, culprit_host, operation, phase, group)


_also = {}


def also(kind, other):
    """The subclass of an error class that is `other` too; one for each pair."""
    if issubclass(kind, other):
        return kind
    if (kind, other) not in _also:
        _also[kind, other] = type(
            kind.__name__, (kind, other), {"__doc__": kind.__doc__, "__module__": kind.__module__}
        )
    return _also[kind, other]


def as_horovod(error):
    """The same failure as programs written for Horovod expect it: ValueError for the caller's faults, else
    HorovodInternalError."""
    if isinstance(error, (ValueError, HorovodInternalError)):
        return error
    return also(type(error), HorovodInternalError)(*error.fields())


def _home_of(kind):
    """How a class is found again after pickling: its code, and whether it is Horovod's or a ValueError too."""
    other = next((base for base in (HorovodInternalError, ValueError) if issubclass(kind, base)), None)
    return kind.code, other is not None and other.__name__


def _rebuild(home, fields):
    code, other = home
    kind = CLASSES[code]
    if other:
        kind = also(kind, {"HorovodInternalError": HorovodInternalError, "ValueError": ValueError}[other])
    return kind(*fields)
