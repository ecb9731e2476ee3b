"""The module from which older programs import RayExecutor."""

from farandole.integrations.ray import RayExecutor  # noqa: F401
