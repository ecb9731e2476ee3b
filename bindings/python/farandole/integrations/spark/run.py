"""run() and run_elastic(), with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, TextIO

from ..ranks.elastic_job import ElasticJob, limits_of
from ..ranks.fixed_job import FixedJob
from ..ranks.job import Options
from ..ranks.process import task_of
from .cluster import SparkCluster, active_context

_START_TIMEOUT_S = 600.0


def run(fn: Callable, args: Sequence = (), kwargs: dict | None = None, num_proc: int | None = None,
        start_timeout: float | None = None, use_mpi=None, use_gloo=None, extra_mpi_args=None,
        env: dict[str, str] | None = None, stdout: TextIO | None = None, stderr: TextIO | None = None,
        verbose: int = 1, nics: Sequence[str] | None = None, prefix_output_with_timestamp: bool = False,
        executable: str | None = None) -> list:  # fmt: skip
    """Calls fn(*args, **kwargs) on `num_proc` ranks and returns their results in rank order.

    The ranks are the tasks of one barrier stage of the active Spark session, so that all run at the same time; each is
    a process beside Spark's own. Ranks of one host are consecutive, in the order of the tasks.

    `num_proc`: the number of ranks; spark.default.parallelism without it.
    `start_timeout`: seconds in which Spark must start all tasks, and in which all ranks must arrive in init().
    `env`: variables to set for the ranks.
    `stdout`, `stderr`: files for the output of the ranks, each line after "[RANK] "; sys.stdout and sys.stderr
    without them. `prefix_output_with_timestamp` adds the time.
    `nics`: names of the network interfaces to use.
    `executable`: the Python interpreter of the ranks; Spark's without it.

    use_mpi, use_gloo, extra_mpi_args and verbose are accepted and ignored. RankError if a rank fails: it names the
    rank, its host, its executor and the cause, and is an instance of the cause's class too. The other ranks are ended.
    TimeoutError if Spark does not start all tasks in time. ValueError if the function cannot be pickled.
    """
    context, cluster, options = _prepare(
        fn, args, kwargs, True, start_timeout, env, stdout, stderr, nics, prefix_output_with_timestamp, executable
    )
    return FixedJob(_count("num_proc", num_proc, context), cluster, options).run()


def run_elastic(fn: Callable, args: Sequence = (), kwargs: dict | None = None, num_proc: int | None = None,
                min_num_proc: int | None = None, max_num_proc: int | None = None, start_timeout: float | None = None,
                elastic_timeout: float | None = None, reset_limit: int | None = None,
                env: dict[str, str] | None = None, stdout: TextIO | None = None, stderr: TextIO | None = None,
                verbose: int = 1, nics: Sequence[str] | None = None, prefix_output_with_timestamp: bool = False,
                min_np: int | None = None, max_np: int | None = None,
                executable: str | None = None) -> list:  # fmt: skip
    """As run(), for a function that farandole.elastic.run has wrapped (horovod's: hvd.elastic.run).

    Spark runs `max_num_proc` tasks as slots are free. The first world begins with at least `min_num_proc` ranks. A
    rank that dies or raises is replaced in its task; a task whose executor is lost is started again by Spark
    (spark.task.maxFailures times). The others continue from their last commit meanwhile, if `min_num_proc` ranks are
    left; else they wait for up to `elastic_timeout` seconds (600). Returns the results of the last world.

    `num_proc`: the default of both numbers. `reset_limit`: how many worlds may follow the first.
    """
    context, cluster, options = _prepare(
        fn, args, kwargs, False, start_timeout, env, stdout, stderr, nics, prefix_output_with_timestamp, executable
    )
    usual = _count("num_proc", num_proc, context)
    fewest, most = limits_of(
        usual, min_np if min_num_proc is None else min_num_proc, max_np if max_num_proc is None else max_num_proc
    )
    timeout_s = 600.0 if elastic_timeout is None else float(elastic_timeout)
    return ElasticJob(fewest, most, reset_limit or 0, timeout_s, cluster, options).run()


def _prepare(fn, args, kwargs, barrier, start_timeout, env, stdout, stderr, nics, timestamps, executable) -> tuple:
    context = active_context()
    from pyspark import cloudpickle

    task = task_of(fn, args, kwargs or {}, cloudpickle.dumps)
    limit_s = _START_TIMEOUT_S if start_timeout is None else start_timeout
    options = Options.of(limit_s, env, stdout, stderr, nics, timestamps)
    return context, SparkCluster(context, task, barrier, executable), options


def _count(name: str, given: int | None, context) -> int:
    count = context.defaultParallelism if given is None else int(given)
    if count < 1:
        raise ValueError(f"{name}={given}: at least one rank is needed")
    return count
