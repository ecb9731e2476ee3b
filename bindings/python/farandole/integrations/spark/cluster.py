"""SparkCluster: tasks of one Spark job as the agents of a farandole job."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, Callable

from ...errors import PeerLostError
from ..needed import import_needed
from ..ranks.job import Cluster
from ..ranks.worlds import Secret

_USER, _PACKAGE = "farandole.spark", "pyspark>=3.5"


def active_context():
    """The SparkContext of the active session. RuntimeError if there is none, or if it is one of Spark Connect."""
    import_needed(_USER, "pyspark", "PySpark", _PACKAGE)
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        return context
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise RuntimeError(
            "farandole.spark: this session is one of Spark Connect, which has no barrier stages of RDDs: run the "
            "driver in the cluster (spark-submit), or create a session with master() in place of remote()"
        )
    raise RuntimeError(
        "farandole.spark: there is no active SparkSession: create one, SparkSession.builder.getOrCreate()"
    )


class SparkCluster(Cluster):
    """Starts agents as the tasks of one job, all at once (`barrier`) or as slots get free, and again after a loss."""

    name = "Spark"

    def __init__(self, context, task: bytes, barrier: bool, python: str | None = None):
        self._context, self._task, self._barrier, self._python = context, task, barrier, python
        self._group = f"farandole-{secrets.token_hex(8)}"

    def address(self) -> str:
        return self._context.getConf().get("spark.driver.host") or "127.0.0.1"

    def start(self, count: int, addresses: list[tuple[str, int]], key: Secret, done: Callable[[list, Any], None]):
        from pyspark import InheritableThread

        rows = self._context.parallelize(range(count), count)
        task, python = self._task, self._python

        def agent(partition: int, _):
            from farandole.integrations.spark.task import run_task

            return run_task(partition, addresses, key, task, python)

        def work():
            # Each thread has its own job group: the group of the caller's thread stays.
            self._context.setJobGroup(self._group, f"farandole: {count} ranks", interruptOnCancel=False)
            try:
                stage = rows.barrier() if self._barrier else rows
                done(stage.mapPartitionsWithIndex(agent).collect(), None)
            except BaseException as error:
                done([], _understood(error))

        InheritableThread(target=work, name="farandole.spark", daemon=True).start()

    def cancel(self) -> None:
        self._context.cancelJobGroup(self._group)

    def place(self, facts: Mapping) -> str:
        executor = f"Spark executor {facts['executor']}, " if facts["executor"] else ""
        return f"{facts['host_name']} ({facts['address']}, {executor}process {facts['process']})"

    def how_lost(self, facts: Mapping, error: BaseException | None) -> str | None:
        """The sentence of Spark about an executor, if it is the one of this agent, or about this agent's task."""
        text = str(error)
        executor = re.search(r"ExecutorLostFailure \(executor (\S+) exited.*?\) Reason: ([^\n]*)", text)
        if executor and executor[1] == facts["executor"]:
            return f"Spark lost its executor {executor[1]}: {executor[2].strip()}"
        task = re.search(r"barrier task ResultTask\(\d+, (\d+)\) finished unsuccessfully\.\s*([^\n]*)", text)
        if task and int(task[1]) == facts["order"]:
            return f"Spark lost its task: {task[2].strip()}"
        return None


def _understood(error: BaseException) -> BaseException:
    """The error of Spark, or one that tells the remedy where it is known."""
    text = str(error)
    if "ModuleNotFoundError: No module named 'farandole'" in text:
        return RuntimeError(
            "farandole.spark: the Python of Spark's executors has no farandole: pip install farandole there, or set "
            "spark.pyspark.python to a Python that has it"
        )
    if "SPARK-24819" in text or "requires more slots" in text:
        return TimeoutError(f"farandole.spark: Spark has too few slots for all ranks at once: {_first_line(text)}")
    if "SPARK-24820" in text or "SPARK-24821" in text:
        return RuntimeError(
            f"farandole.spark: barrier stages cannot run with dynamic allocation: set spark.dynamicAllocation.enabled "
            f"to false ({_first_line(text)})"
        )
    reached = re.search(r"farandole\.errors\.PeerLostError: (the driver [^\n]*)", text)
    if reached:
        return PeerLostError(f"farandole.spark: {reached[1]}; see spark.driver.host and FARANDOLE_PORT_BASE")
    return error


def _first_line(text: str) -> str:
    found = re.search(r"\[SPARK-\d+\][^\n]*", text)
    return found[0] if found else text.strip().splitlines()[0]
