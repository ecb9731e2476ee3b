"""horovod.spark: functions on ranks that are Spark tasks. PySpark is imported when a function is called."""

from farandole.integrations.spark import run, run_elastic  # noqa: F401
