"""Elastic jobs: the classes that states are made of, and the function that runs them."""

from farandole.elastic import ObjectState, State, run  # noqa: F401
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt  # noqa: F401
