"""The place from which programs import log."""

from farandole.ray.ray_logger import log  # noqa: F401
