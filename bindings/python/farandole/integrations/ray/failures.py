"""Failures: reads the errors of Ray, which wrap the exceptions of workers."""

from __future__ import annotations

import re

from ..ranks.failures import Reader
from .worker import place


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


READER = Reader(own=own, is_death=is_death, how_it_died=how_it_died, details=str)
