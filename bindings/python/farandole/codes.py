"""Codes: the numbers of the C API for operators, operations, collectives, dtypes and kinds of devices.

The native module exports the numbers of include/farandole/farandole.h with which it was compiled.
"""

import enum

from . import _native, errors

_codes = _native.codes()


def _enumeration(name, text, codes):
    made = enum.IntEnum(name, codes, module=__name__)
    made.__doc__ = text
    return made


# USER needs a C function, which Python cannot pass.
Op = _enumeration("Op", "The operators of reductions: SUM, AVERAGE, MIN, MAX, PRODUCT, ADASUM; BIT_ and LOGICAL_ AND, "
                        "OR, XOR.",
                  {name: number for name, number in _codes["reduce_op"].items() if name != "USER"})  # fmt: skip
Kind = _enumeration("Kind", "The named operations.", _codes["kind"])
Collective = _enumeration("Collective", "The ordered collectives, and messages.", _codes["collective"])
DEVICE_CPU, DEVICE_CUDA = _codes["device_kind"]["CPU"], _codes["device_kind"]["CUDA"]


_OTHER_NAMES_OF_OPS = {"MEAN": Op.AVERAGE, "AVG": Op.AVERAGE, "PROD": Op.PRODUCT}


def number_of(op):
    """The number of an operator: a member of Op, its number, or its name such as "sum", "mean" or "max".

    InvalidArgumentError for anything else.
    """
    if isinstance(op, Op):
        return int(op)
    try:
        if isinstance(op, str):
            name = op.upper()
            return int(_OTHER_NAMES_OF_OPS.get(name) or Op[name])
        return int(Op(op))
    except (KeyError, ValueError):
        raise errors.InvalidArgumentError(
            f"op={op!r} is not an operator; give one of farandole's: {', '.join(Op.__members__)}, "
            'such as op=farandole.SUM or op="sum"'
        ) from None


COMPRESSIONS = {name.lower(): number for name, number in _codes["compression"].items()}


def number_of_compression(compression):
    """The number of a compression, given by its name or None. InvalidArgumentError for anything else."""
    if compression is None:
        return COMPRESSIONS["none"]
    number = COMPRESSIONS.get(compression) if isinstance(compression, str) else None
    if number is None:
        raise errors.InvalidArgumentError(
            f"compression={compression!r} is not a compression; give one of {', '.join(COMPRESSIONS)}, or None"
        )
    return number


# NumPy's and PyTorch's names of dtypes, by number. Three of them come from the package ml_dtypes.
_OTHER_NAMES = {"FLOAT8_E4M3": "float8_e4m3fn"}
DTYPE_NAMES = {number: _OTHER_NAMES.get(name, name.lower()) for name, number in _codes["dtype"].items()}
UINT8 = _codes["dtype"]["UINT8"]
