"""farandole.integrations.ray: the workers of a Ray cluster as one world of ranks.

    from farandole.integrations.ray import FarandoleTrainer  # Ray Train: FarandoleTrainer(train, ...).fit()
    from farandole.integrations.ray import FarandoleConfig   # the same for other trainers: their backend_config
    from farandole.integrations.ray import RayExecutor       # Horovod's: start(), run(), execute(), shutdown()
    from farandole.integrations.ray import ray_logger        # ray_logger.log(value): to callbacks

Ray is imported when one of them is used. The function that runs in the workers calls `farandole.init()`.
"""

import importlib

from . import elastic_executor, ray_logger  # noqa: F401 (RayExecutor makes elastic executors, too)
from .executor import RayExecutor, Settings
from .placement import Seat, by_node, number, visible_devices

__all__ = ["FarandoleConfig", "FarandoleTrainer", "RayExecutor", "Seat", "Settings", "by_node", "number", "ray_logger",
           "visible_devices"]  # fmt: skip


def __getattr__(name: str):
    """FarandoleConfig and FarandoleTrainer are classes of Ray Train's, which takes seconds to import."""
    if name not in ("FarandoleConfig", "FarandoleTrainer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(".train", __name__), name)
