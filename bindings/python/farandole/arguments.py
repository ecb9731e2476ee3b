"""Checks of numbers and texts before the native module converts them, whose own errors do not name the argument."""

import operator

from . import errors

_INT = range(-(2**31), 2**31)
SIZE = range(2**63)  # bytes and counts; indices of a larger range do not fit in its methods


def checked_number(value, name, allowed=_INT):
    """`value` as an int of the range that the core has for this argument."""
    try:
        index = operator.index(value)
    except TypeError:
        raise errors.InvalidArgumentError(f"{name} is {value!r}; give a whole number") from None
    if index not in allowed:
        raise errors.InvalidArgumentError(f"{name} is {index}; give a number of {allowed.start}..{allowed.stop - 1}")
    return index


def checked_text(value, name):
    """`value`, str or bytes, as text that C can hold: encodable, and without NUL, which would end it for the core."""
    if not isinstance(value, (str, bytes)):
        raise errors.InvalidArgumentError(f"{name} has the type {type(value).__name__}; give text")
    shown = "(not shown)" if name == "job_key" else ascii(value)
    try:
        data = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise errors.InvalidArgumentError(f"{name} {shown} cannot be encoded as UTF-8; leave surrogates out") from None
    if b"\0" in data:
        raise errors.InvalidArgumentError(f"{name} {shown} contains a NUL character; leave it out")
    return value
