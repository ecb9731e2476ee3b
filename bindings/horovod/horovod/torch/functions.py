"""Broadcasts of states and objects."""

from farandole.torch.state import (  # noqa: F401
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
