"""run() and run_elastic() on a Dask cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, TextIO

from ..ranks.elastic_job import ElasticJob, limits_of
from ..ranks.fixed_job import FixedJob
from ..ranks.job import Options
from ..ranks.process import task_of
from .cluster import DaskCluster, client_of


def run(fn: Callable, args: Sequence = (), kwargs: dict | None = None, client=None,
        workers: Sequence[str] | None = None, num_proc: int | None = None, start_timeout: float = 60,
        env: dict[str, str] | None = None, stdout: TextIO | None = None, stderr: TextIO | None = None,
        nics: Sequence[str] | None = None, prefix_output_with_timestamp: bool = False,
        executable: str | None = None) -> list:  # fmt: skip
    """Calls fn(*args, **kwargs) on `num_proc` ranks and returns their results in rank order.

    Each rank is a process that a Dask worker starts, and takes one of that worker's threads until it ends. Ranks of one
    host are consecutive.

    `client`: the Dask client; the active one without it. Workers must reach its host.
    `workers`: addresses of the workers to use; all without it.
    `num_proc`: the number of ranks, spread evenly; without it one for each worker.
    `start_timeout`: seconds in which Dask must start all ranks, and in which all ranks must arrive in init().
    `env`: variables to set for the ranks.
    `stdout`, `stderr`: files for the output of the ranks, each line after "[RANK] "; sys.stdout and sys.stderr
    without them. `prefix_output_with_timestamp` adds the time.
    `nics`: names of the network interfaces to use.
    `executable`: the Python interpreter of the ranks; that of the worker without it.

    RankError if a rank fails: it names the rank, its host, its Dask worker and the cause, and is an instance of the
    cause's class too. The other ranks are ended. TimeoutError if Dask does not start all ranks in time. ValueError if
    the function cannot be pickled or the workers have too few threads.
    """
    client = client_of(client)
    chosen = _choose(client, workers, num_proc)
    cluster = DaskCluster(client, chosen, False, _task(fn, args, kwargs), executable)
    options = Options.of(start_timeout, env, stdout, stderr, nics, prefix_output_with_timestamp)
    return FixedJob(len(chosen), cluster, options).run()


def run_elastic(fn: Callable, args: Sequence = (), kwargs: dict | None = None, client=None,
                num_proc: int | None = None, min_num_proc: int | None = None, max_num_proc: int | None = None,
                start_timeout: float = 60, elastic_timeout: float = 600, reset_limit: int | None = None,
                env: dict[str, str] | None = None, stdout: TextIO | None = None, stderr: TextIO | None = None,
                nics: Sequence[str] | None = None, prefix_output_with_timestamp: bool = False,
                executable: str | None = None) -> list:  # fmt: skip
    """As run(), for a function that farandole.elastic.run has wrapped (horovod's: hvd.elastic.run).

    Dask runs `max_num_proc` tasks as its workers have threads. The first world begins with at least `min_num_proc`
    ranks. A rank that dies or raises is replaced in its task; a task whose worker is lost is started on another one by
    Dask (distributed.scheduler.allowed-failures times). The others continue from their last commit meanwhile, if
    `min_num_proc` ranks are left; else they wait for up to `elastic_timeout` seconds. Returns the results of the last
    world.

    `num_proc`: the default of both numbers. `reset_limit`: how many worlds may follow the first.
    """
    client = client_of(client)
    usual = len(_choose(client, None, num_proc))
    fewest, most = limits_of(usual, min_num_proc, max_num_proc)
    cluster = DaskCluster(client, _choose(client, None, most), True, _task(fn, args, kwargs), executable)
    options = Options.of(start_timeout, env, stdout, stderr, nics, prefix_output_with_timestamp)
    return ElasticJob(fewest, most, reset_limit or 0, float(elastic_timeout), cluster, options).run()


def _task(fn: Callable, args: Sequence, kwargs: dict | None) -> bytes:
    import cloudpickle  # which Dask needs too

    return task_of(fn, args, kwargs or {}, cloudpickle.dumps)


def _choose(client, workers: Sequence[str] | None, count: int | None) -> list[str]:
    """The worker of each rank. ValueError if the workers have too few threads."""
    threads = client.nthreads()
    if workers is not None:
        unknown = [one for one in workers if one not in threads]
        if unknown:
            raise ValueError(f"workers: the cluster has no worker {unknown[0]}; it has {', '.join(threads)}")
        threads = {one: threads[one] for one in workers}
    count = len(threads) if count is None else int(count)
    if count < 1:
        raise ValueError(f"num_proc={count}: at least one rank is needed, and the cluster has {len(threads)} workers")
    if count > sum(threads.values()):
        raise ValueError(
            f"num_proc={count}: the {len(threads)} workers have {sum(threads.values())} threads; each rank takes one"
        )
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += [one for one in threads if chosen.count(one) < threads[one]][: count - len(chosen)]
    return chosen
