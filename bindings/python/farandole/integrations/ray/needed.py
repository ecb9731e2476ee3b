"""Needed: Ray, or an error that says how to get it; and what runs beside the driver."""

import importlib
from types import ModuleType


def ray_module(user: str, name: str = "ray", package: str = "ray") -> ModuleType:
    """The module `name` of Ray. ImportError where it is not installed: `user` needs it, and pip calls it `package`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{user} needs Ray, and `import {name}` failed: {error}. pip install '{package}'") from error


def beside_driver(ray: ModuleType, kind: type, *arguments):
    """An actor of this class on the driver's node, where there is no more to lose. It takes no core."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=here).remote(*arguments)
