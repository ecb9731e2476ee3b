"""farandole.integrations.dask: functions on ranks that run beside the workers of a Dask cluster.

    from farandole.integrations.dask import run            # run(train, args=(...), client=client)
    from farandole.integrations.dask import run_elastic    # ranks that are lost are replaced

farandole.dask is the same package. Dask is imported when a function is called. The function that runs on the ranks
calls `farandole.init()`, or that of farandole.torch and the like.
"""

from .run import run, run_elastic

__all__ = ["run", "run_elastic"]
