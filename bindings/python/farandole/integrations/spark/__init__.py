"""farandole.integrations.spark: functions on ranks that are tasks of a Spark job.

    from farandole.integrations.spark import run            # Horovod's: run(train, args=(...), num_proc=4)
    from farandole.integrations.spark import run_elastic    # ranks that are lost are replaced

farandole.spark is the same package. PySpark is imported when a function is called. The function that runs on the ranks
calls `farandole.init()`, or that of farandole.torch and the like.
"""

from .run import run, run_elastic

__all__ = ["run", "run_elastic"]
