"""Imports of Ray that fail with an installation hint, and actors on the driver's node."""

from types import ModuleType

from ..needed import import_needed


def ray_module(user: str, name: str = "ray", package: str = "ray") -> ModuleType:
    """Imports and returns the module `name` of Ray.

    ImportError if it is not installed. The text names `user`, which needs it, and `package`, its name for pip.
    """
    return import_needed(user, name, "Ray", package)


def beside_driver(ray: ModuleType, kind: type, *arguments):
    """Starts an actor of class `kind` on the driver's node, so that only the loss of the driver loses it.

    The actor reserves no core.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=here).remote(*arguments)
