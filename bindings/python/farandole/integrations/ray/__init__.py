"""farandole.integrations.ray: the workers of a Ray cluster as one world of ranks.

    from farandole.integrations.ray import FarandoleTrainer  # Ray Train: FarandoleTrainer(train, ...).fit()
    from farandole.integrations.ray import FarandoleConfig   # for other trainers of Ray Train: their backend_config
    from farandole.integrations.ray import RayExecutor       # Horovod's: start(), run(), execute(), shutdown()
    from farandole.integrations.ray import ray_logger        # ray_logger.log(value) reaches the driver's callbacks

Ray is imported when one of them is used. The function that runs in the workers calls `farandole.init()`.
"""

import importlib

from ..ranks.placement import Member, Seat, by_node, number, visible_devices
from . import ray_logger
from .executor import RayExecutor, Settings

__all__ = [
    "FarandoleConfig",
    "FarandoleTrainer",
    "Member",
    "RayExecutor",
    "Seat",
    "Settings",
    "by_node",
    "number",
    "ray_logger",
    "visible_devices",
]


def __getattr__(name: str):
    """Imports FarandoleConfig and FarandoleTrainer at their first use, because importing Ray Train takes seconds."""
    if name not in ("FarandoleConfig", "FarandoleTrainer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".train", __name__), name)
