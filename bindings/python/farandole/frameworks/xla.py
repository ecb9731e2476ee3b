"""The library with the handlers that XLA calls, for farandole.jax and farandole.tensorflow."""

import ctypes
import functools
import itertools
import os

from .. import errors

PATH = os.path.join(os.path.dirname(os.path.dirname(__file__)), "jax", "libfarandole_jax.so")


def is_built():
    """Whether this build of farandole has the library."""
    return os.path.exists(PATH)


@functools.cache
def library():
    """The library. UnsupportedError if this build of farandole has none."""
    if not is_built():
        raise errors.UnsupportedError(
            "this build of farandole has no handler for functions that XLA compiles; build it with the headers of "
            "jaxlib 0.7.2, or call the collective outside jit"
        )
    loaded = ctypes.CDLL(PATH)
    loaded.farandole_jax_set_group.argtypes = [ctypes.c_int64, ctypes.c_void_p]
    loaded.farandole_jax_set_group.restype = None
    loaded.farandole_jax_failure.argtypes = [ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    loaded.farandole_jax_failure.restype = ctypes.c_size_t
    loaded.farandole_jax_register_in_tensorflow.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    loaded.farandole_jax_register_in_tensorflow.restype = ctypes.c_char_p
    return loaded


def set_group(number, address):
    """Gives a group a number, by which compiled programs find it. None removes the number.

    Returns when no program submits to the former group of that number any more.
    """
    library().farandole_jax_set_group(number, address)


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


def failure_in(text):
    """The farandole.Error whose text is in this text of an exception of XLA, or None.

    XLA passes the text of an error on, and drops the other facts: this function returns them.
    """
    for failure in _failures() if is_built() else ():
        if failure[1] and failure[1] in text:
            return errors.make(*failure)
    return None
