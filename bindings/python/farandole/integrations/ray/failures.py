"""Failures: finds the first cause among the failures of several workers, and words it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Callable

from ... import errors
from ...run import RankError, rank_error
from .worker import place


def is_collateral(error: BaseException | None, rank: int) -> bool:
    """Whether `error` of `rank` only reports that another rank failed."""
    while error is not None:
        if isinstance(error, errors.Error) and error.culprit_rank not in (-1, rank):
            return True
        if isinstance(error, (errors.ShutDownError, errors.AbortedError)):
            return True
        error = _cause(error)
    return False


def first_cause(failures: Mapping[int, BaseException]) -> int:
    """The rank that failed first, given the error of each failed rank in order of arrival.

    It is a rank that died; else the first whose error does not report another rank; else the rank that the first error
    reports.
    """
    for rank, error in sorted(
        failures.items(), key=lambda one: not is_death(one[1])
    ):  # stable: in order of arrival otherwise
        if not is_collateral(error, rank):
            return rank
    rank, error = next(iter(failures.items()))
    while error is not None:
        if isinstance(error, errors.Error) and error.culprit_rank >= 0:
            return error.culprit_rank
        error = _cause(error)
    return rank


def explain(failures: Mapping[int, BaseException], place_of: Callable[[int], str], size: int | None) -> RankError:
    """The exception to raise. `place_of` returns a rank's place. `__cause__` is the exception of the worker."""
    rank = first_cause(failures)
    error = failures.get(rank)
    where = f"rank {rank}" + (f" of {size}" if size else "") + f" on {place_of(rank)}"
    others = [f"rank {one} reports: {_last_line(own(failure))}" for one, failure in failures.items() if one != rank][:1]
    if error is None:
        return rank_error(rank, "; ".join([f"{where} was lost", *others]), own(next(iter(failures.values()))))
    if is_death(error):
        return rank_error(rank, "; ".join([f"{where} died: {how_it_died(own(error))}", *others]), own(error))
    cause = own(error)
    return rank_error(rank, f"{where} raised {type(cause).__name__}: {cause}\n\n{error}", cause)


def place_in(error: BaseException | None) -> str:
    """The place of a worker of Ray Train, as far as the text of its error contains it."""
    text = str(error)
    if noted := re.search(
        r"^in (\S+ \(\S+, Ray's node \w+, process \d+\))$", text, re.M
    ):  # the note that the worker added
        return noted[1]
    words = ("hostname", "node_ip", "node_id", "ip", "pid")
    found = {word: re.search(rf"\b{word}[:=] ?'?([\w.:-]+)", text) for word in words}
    if found["hostname"] and found["node_id"]:
        return place(*[found[word][1] for word in ("hostname", "node_ip", "node_id", "pid")])
    return f"{found['ip'][1]} (process {found['pid'][1]})" if found["ip"] else "a node that Ray does not name"


def is_death(error: BaseException) -> bool:
    """Whether Ray lost the worker. False if the worker raised an exception."""
    names = {kind.__name__ for kind in type(own(error)).__mro__}
    return not names.isdisjoint(("RayActorError", "OutOfMemoryError", "NodeDiedError"))


def how_it_died(error: BaseException) -> str:
    """The sentence of Ray's error that names the cause of a death."""
    text = str(error)
    found = re.search(r"The actor is dead because (.*)", text, re.S)
    text = (found[1] if found else text).split(" Some common causes include")[0]
    return " ".join(text.split()).rstrip(".") or type(error).__name__


def own(error: BaseException) -> BaseException:
    """The exception of the worker, or Ray's error about its loss, without the exceptions that Ray wraps around it."""
    for wrapped in ("cause", "health_check_failure", "_base_exc"):
        inner = getattr(error, wrapped, None)
        if isinstance(inner, BaseException):
            return own(inner)
    return error


def _cause(error: BaseException) -> BaseException | None:
    inner = own(error)
    return inner if inner is not error else error.__cause__ or error.__context__


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
