"""The place from which older programs import RayExecutor."""

from farandole.ray import RayExecutor  # noqa: F401
