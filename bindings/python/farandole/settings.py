"""Reads settings of the core, from wherever they were set."""

from . import _native


def value_of(name):
    """The value of a setting as text, such as "10" for lost_after_s. Names are those of `farandole config`."""
    for line in _native.config().splitlines():
        words = line.split()
        if words[0] == name:
            return words[1]
    raise KeyError(name)
