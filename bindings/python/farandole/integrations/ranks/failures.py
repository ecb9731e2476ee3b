"""Failures: finds the first cause among the failures of several ranks, and words it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable

from ... import errors
from ...run import RankError, rank_error


class RankDied(Exception):
    """A rank ended without a result and without an exception. The text tells how."""


@dataclass(frozen=True)
class Reader:
    """How to read the errors of a job system, which may wrap the exception of a rank in others.

    `own`: the exception of the rank, or the error about its loss, without wrappers. `is_death`: whether the rank was
    lost, and did not raise. `how_it_died`: the cause of a loss as text. `details`: the traceback of an exception.
    """

    own: Callable[[BaseException], BaseException] = lambda error: error
    is_death: Callable[[BaseException], bool] = lambda error: isinstance(error, RankDied)
    how_it_died: Callable[[BaseException], str] = str
    details: Callable[[BaseException], str] = lambda error: getattr(error, "rank_traceback", str(error))

    def cause(self, error: BaseException) -> BaseException | None:
        inner = self.own(error)
        return inner if inner is not error else error.__cause__ or error.__context__


PLAIN = Reader()


def is_collateral(error: BaseException | None, rank: int, reader: Reader = PLAIN) -> bool:
    """Whether `error` of `rank` only reports that another rank failed."""
    while error is not None:
        if isinstance(error, errors.Error) and error.culprit_rank not in (-1, rank):
            return True
        if isinstance(error, (errors.ShutDownError, errors.AbortedError)):
            return True
        error = reader.cause(error)
    return False


def first_cause(failures: Mapping[int, BaseException], reader: Reader = PLAIN) -> int:
    """The rank that failed first, given the error of each failed rank in order of arrival.

    It is a rank that died; else the first whose error does not report another rank; else the rank that the first error
    reports.
    """
    # The sort is stable: in order of arrival otherwise.
    for rank, error in sorted(failures.items(), key=lambda one: not reader.is_death(one[1])):
        if not is_collateral(error, rank, reader):
            return rank
    rank, error = next(iter(failures.items()))
    while error is not None:
        if isinstance(error, errors.Error) and error.culprit_rank >= 0:
            return error.culprit_rank
        error = reader.cause(error)
    return rank


def explain(failures: Mapping[int, BaseException], place_of: Callable[[int], str], size: int | None,
            reader: Reader = PLAIN) -> RankError:  # fmt: skip
    """The exception to raise. `place_of` returns a rank's place. `__cause__` is the exception of the rank."""
    rank = first_cause(failures, reader)
    error = failures.get(rank)
    where = f"rank {rank}" + (f" of {size}" if size else "") + f" on {place_of(rank)}"
    others = [f"rank {one} reports: {_last_line(reader.own(failure))}"
              for one, failure in failures.items() if one != rank][:1]  # fmt: skip
    if error is None:
        cause = reader.own(next(iter(failures.values())))
        return rank_error(rank, "; ".join([f"{where} was lost", *others]), cause)
    own = reader.own(error)
    if reader.is_death(error):
        return rank_error(rank, "; ".join([f"{where} died: {reader.how_it_died(own)}", *others]), own)
    return rank_error(rank, f"{where} raised {type(own).__name__}: {own}\n\n{reader.details(error)}", own)


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
