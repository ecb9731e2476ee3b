"""ElasticRayExecutor with Horovod's arguments, on farandole's RayExecutor with min_workers and max_workers."""

from types import SimpleNamespace

from farandole.integrations.ray import RayExecutor, Settings


class ElasticRayExecutor:
    """Runs a function that hvd.elastic.run has wrapped on the workers of a Ray cluster, and replaces lost workers.

    `settings`: of create_settings(). `cpus_per_slot`, `gpus_per_slot`: the resources of each worker. `env_vars`: set in
    each worker. Ray finds the hosts, so `override_discovery` has no effect.
    """

    @staticmethod
    def create_settings(min_num_proc=1, max_num_proc=None, reset_limit=None, elastic_timeout=600, timeout_s=30,
                        nics=None, min_np=None, max_np=None, **others):  # fmt: skip
        """The numbers of workers, the limit of new generations, and the seconds to wait for workers.

        `nics`: names of the network interfaces to use. Options of ssh, `verbose` and the like have no effect.
        """
        return SimpleNamespace(
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            timeout_s=timeout_s,
            nics=nics,
            without_effect=others,
        )

    def __init__(self, settings, use_gpu=False, cpus_per_slot=1, gpus_per_slot=None, env_vars=None,
                 override_discovery=True):  # fmt: skip
        self._variables = dict(env_vars or {})
        self._executor = RayExecutor(
            Settings(timeout_s=settings.timeout_s, nics=settings.nics),
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit,
            elastic_timeout=settings.elastic_timeout,
            cpus_per_worker=cpus_per_slot,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot,
        )

    def start(self):
        """Starts workers. TimeoutError if Ray has no resources for the fewest within `timeout_s`."""
        self._executor.start(extra_env_vars=self._variables)

    def run(self, worker_fn, callbacks=None):
        """Calls worker_fn() on all workers and returns their results in rank order, then ends the workers."""
        try:
            return self._executor.run(worker_fn, callbacks=callbacks)
        finally:
            self._executor.shutdown()
