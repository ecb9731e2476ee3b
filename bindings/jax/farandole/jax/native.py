"""The handler that XLA calls, the numbers of groups in compiled programs, and their failures."""

import functools
import itertools
import threading

import jax
import jaxlib

from .. import core, errors
from ..basics import watch_process_sets
from ..frameworks import xla
from . import names

TARGET = "farandole_collective"  # the name of the handler in compiled programs


@functools.cache
def register():
    """Registers the handler with XLA. UnsupportedError if this release of jaxlib refuses it."""
    handler = jax.ffi.pycapsule(xla.library().farandole_jax_collective)
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

# A compiled program names its group by a number: 0 for the group of all ranks in every world, so that the program stays
# valid, and a new number for each other process set. The ids of process sets are used again, and would not do.
_lock = threading.Lock()
_numbers = {0: 0}  # by the id of a process set
_next_number = itertools.count(1)
_is_stale = False


def number_of(process_set):
    """The number of a registered process set in compiled programs."""
    global _is_stale
    _is_stale = True  # programs are compiled for this world
    return _numbers[process_set.process_set_id]


def _watch(process_set_id, process_set):
    """Keeps the groups that programs find in step with the process sets. None: the set ends."""
    if not xla.is_built():
        return
    with _lock:
        if process_set is not None:
            number = 0 if process_set_id == 0 else next(_next_number)
            _numbers[process_set_id] = number
            if process_set.included():
                xla.set_group(number, process_set.group("farandole.jax").member().address)
        elif process_set_id in _numbers:
            # Returns when no program submits to the group any more.
            xla.set_group(_numbers[process_set_id], None)


def _forget_names():
    """Drops what was compiled for a world that ends, where it knows the number of ranks and counts of calls.

    All ranks of the next world trace their functions again, and so count unnamed calls alike.
    """
    global _is_stale
    names.forget()
    if _is_stale:
        jax.clear_caches()
    _is_stale = False


watch_process_sets(_watch)
core.on_shutdown(_forget_names)


# ---- Failures -------------------------------------------------------------------------------------------------------


FROM_XLA = (jax.errors.JaxRuntimeError, ValueError)  # the classes of failures in compiled functions


def error_of(exception):
    """The farandole.Error for an exception of a compiled function, or None if no collective caused it."""
    if isinstance(exception, errors.Error):
        return exception
    # JAX raises a JaxRuntimeError, and a ValueError where the execution failed in the call itself.
    if not isinstance(exception, FROM_XLA):
        return None
    return xla.failure_in(str(exception))
