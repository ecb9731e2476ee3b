"""Elastic jobs with JAX: farandole.elastic, with states that hold arrays and failures of compiled functions."""

import functools

from .. import elastic as _elastic
from ..elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from .native import FROM_XLA, error_of

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "JaxState", "ObjectState", "State", "run"]


def run(func):
    """Wraps `func(state, ...)` as farandole.elastic.run does, for functions that call compiled functions.

    If a rank was lost, a compiled function raises an error of JAX. The wrapper raises its cause: see error_of.
    """

    @functools.wraps(func)
    def attempt(state, *args, **kwargs):
        try:
            return func(state, *args, **kwargs)
        except FROM_XLA as error:
            cause = error_of(error)
            if cause is None or cause is error:
                raise
            raise cause from error

    return _elastic.run(attempt)


class JaxState(ObjectState):
    """Parameters, optimizer states and other values: JaxState(params=params, opt_state=opt_state, step=0).

    Each is an attribute, and attributes that are assigned later are state too. save() copies arrays, so that a function
    may use the memory of donated arguments again. After a change of ranks all functions are compiled again.
    """
