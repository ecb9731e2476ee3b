"""The native library: the handler that XLA calls, the numbers of groups in compiled programs, and their failures."""

import ctypes
import functools
import itertools
import os
import threading

import jax
import jaxlib

from .. import core, errors, world

TARGET = "farandole_collective"  # the name of the handler in compiled programs
_PATH = os.path.join(os.path.dirname(__file__), "libfarandole_jax.so")


@functools.cache
def library():
    """The library. UnsupportedError if this build of farandole has none."""
    if not os.path.exists(_PATH):
        raise errors.UnsupportedError(
            "this build of farandole has no handler for compiled functions of JAX; build it with the headers of jaxlib "
            "0.7.2, or call the collective outside jit"
        )
    loaded = ctypes.CDLL(_PATH)
    loaded.farandole_jax_set_group.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    loaded.farandole_jax_set_group.restype = None
    loaded.farandole_jax_failure.argtypes = [ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    loaded.farandole_jax_failure.restype = ctypes.c_size_t
    return loaded


@functools.cache
def register():
    """Registers the handler with XLA. UnsupportedError if this release of jaxlib refuses it."""
    handler = jax.ffi.pycapsule(library().farandole_jax_collective)
    # Until its first use, XLA's CPU backend only notes a handler, and a refusal would then make the backend unusable.
    jax.local_devices(backend="cpu")
    try:
        jax.ffi.register_ffi_target(TARGET, handler, platform="cpu")
    except Exception as error:
        raise errors.UnsupportedError(
            f"jaxlib {jaxlib.__version__} refuses farandole's handler ({error}); install a release of jaxlib that "
            "farandole supports, or call the collective outside jit"
        ) from error


# ---- Groups ---------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_groups = {}  # number: group. The reference keeps the native group alive while compiled programs may use it.
_numbers = itertools.count(1)
_counts = {}  # (number, operation): the unnamed calls that were traced


def number_of(group):
    """The number of a group in compiled programs: 0 for the group of all ranks."""
    native = group.member()
    with _lock:
        for number, known in _groups.items():
            if known is group:
                return number
        number = 0 if group is core.world_group() else next(_numbers)
        library().farandole_jax_set_group(number, native.address)
        _groups[number] = group
        return number


def next_count(number, operation):
    """Counts the unnamed calls of a group that are traced: 0, 1, ..."""
    with _lock:
        count = _counts.get((number, operation), 0)
        _counts[number, operation] = count + 1
        return count


def _forget(group):
    with _lock:
        for number in [number for number, known in _groups.items() if known is group]:
            library().farandole_jax_set_group(number, None)
            del _groups[number]


def _forget_all():
    """Drops the groups of a world that ends, with the programs that were compiled for it.

    All ranks of the next world trace their functions again, and so count unnamed calls alike.
    """
    with _lock:
        for number in _groups:
            library().farandole_jax_set_group(number, None)
        stale = bool(_counts or _groups)
        _groups.clear()
        _counts.clear()
    if stale:
        jax.clear_caches()


world.on_free(_forget)
core.on_shutdown(_forget_all)


# ---- Failures -------------------------------------------------------------------------------------------------------


def _failures():
    """The newest failures of compiled programs, newest first, as the arguments of errors.make."""
    for index in itertools.count():
        size = library().farandole_jax_failure(index, None, 0)
        if size == 0:
            return
        text = ctypes.create_string_buffer(size)
        library().farandole_jax_failure(index, text, size)
        code, text, culprit, *others = text.value.decode(errors="replace").split("\x1f")
        yield (code, text, int(culprit), *others)


def error_of(exception):
    """The farandole.Error for an exception of a compiled function, or None if no collective caused it.

    XLA passes the text of an error on, and drops the other facts: this function returns them.
    """
    if isinstance(exception, errors.Error):
        return exception
    if not isinstance(exception, jax.errors.JaxRuntimeError):
        return None
    text = str(exception)
    for failure in _failures():
        if failure[1] and failure[1] in text:
            return errors.make(*failure)
    return None
