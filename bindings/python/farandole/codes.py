"""Codes: the numbers of the C API for operators, operations, collectives and dtypes."""

import enum

from . import errors


class Op(enum.IntEnum):
    """How elements are combined. The numbers are the C API's."""

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    BIT_AND = 5
    BIT_OR = 6
    BIT_XOR = 7
    LOGICAL_AND = 8
    LOGICAL_OR = 9
    LOGICAL_XOR = 10
    ADASUM = 12


def number_of(op):
    """The C API's number of an operator; its users give one of Op, or that number."""
    try:
        return int(op) if isinstance(op, Op) else int(Op(op))
    except ValueError:
        raise errors.InvalidArgumentError(
            f"op={op!r} is no operator; give one of farandole's: {', '.join(Op.__members__)}, such as op=farandole.SUM"
        ) from None


class Kind(enum.IntEnum):
    """The named operations of the C API."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCE_SCATTER = 4
    BARRIER = 5


class Collective(enum.IntEnum):
    """The ordered collectives of the C API."""

    ALLREDUCE = 0
    REDUCE = 1
    BROADCAST = 2
    ALLGATHER = 3
    REDUCE_SCATTER = 4
    ALLTOALL = 5
    GATHER = 6
    SCATTER = 7
    BARRIER = 8


# NumPy's names of the C API's dtypes, in the order of their numbers. Three of them come from the package ml_dtypes.
DTYPE_NAMES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "bool", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
