"""Elastic jobs with JAX: farandole.elastic, with states that hold arrays and failures of compiled functions."""

import functools

import jax

from .. import elastic as _elastic
from ..elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from .native import error_of

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "JaxState", "ObjectState", "State", "run"]


def run(func):
    """Wraps `func(state, ...)` as farandole.elastic.run does, for functions that call compiled functions.

    A compiled function raises jax.errors.JaxRuntimeError if a rank was lost. The wrapper finds its cause.
    """

    @functools.wraps(func)
    def attempt(state, *args, **kwargs):
        try:
            return func(state, *args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            cause = error_of(error)
            if cause is None:
                raise
            raise cause from error

    return _elastic.run(attempt)


class JaxState(ObjectState):
    """Parameters, optimizer states and other values: JaxState(params=params, opt_state=opt_state, step=0).

    Each is an attribute, and attributes that are assigned later are state too. save() copies arrays, so that a function
    may use the memory of donated arguments again. After a change of ranks all functions are compiled again.
    """
