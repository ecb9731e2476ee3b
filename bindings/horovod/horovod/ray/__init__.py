"""horovod.ray: functions on the workers of a Ray cluster. Ray is imported when an executor starts."""

from farandole.integrations.ray import RayExecutor, ray_logger  # noqa: F401

from .elastic import ElasticRayExecutor  # noqa: F401
