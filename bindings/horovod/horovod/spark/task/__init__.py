"""horovod.spark.task: for functions that run in Spark tasks."""

from farandole.integrations.spark.task import available_devices as get_available_devices  # noqa: F401
