"""The module from which programs import log."""

from farandole.integrations.ray.ray_logger import log  # noqa: F401
