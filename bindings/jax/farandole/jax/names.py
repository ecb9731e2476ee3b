"""Names of unnamed calls in compiled functions: the line of the program that made the call, and a count."""

import os
import sys
import threading

_lock = threading.Lock()
_counts = {}  # the calls that were traced, by place and kind

_LIBRARIES = ("farandole.", "jax.", "optax.", "flax.", "equinox.", "contextlib.", "functools.")


def _line():
    """FILE:LINE of the innermost call that no library made."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__", "") + ".").startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def full_name(group_number, operation, name):
    """The name of a traced call: the caller's, or one that says where the call is.

    All ranks trace the calls of one line in the same order, so that their counts agree. In a report of missing ranks
    the name leads to the line.
    """
    if name is not None:
        if "\0" in name:
            raise ValueError(f"name={name!r} contains the character 0")
        return f"{operation}.{name}"
    key = (group_number, operation, _line())
    with _lock:
        count = _counts.get(key, 0)
        _counts[key] = count + 1
    return f"{operation}.jit.{key[2]}.{count}"


def forget():
    """Counts from 0 again."""
    with _lock:
        _counts.clear()
