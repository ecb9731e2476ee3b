"""The function that Spark runs in each task: an agent, with the task's place in the cluster."""

from __future__ import annotations

import os

from ..ranks.agent import run_agent
from ..ranks.worlds import Secret


def run_task(partition: int, addresses: list[tuple[str, int]], key: Secret, task: bytes,
             python: str | None) -> list[tuple[int, bytes]]:  # fmt: skip
    """The results of the agent of this partition."""
    place = {"order": partition, "executor": executor_id(), "gpus": available_devices()}
    return run_agent(addresses, key, place, task, python)


def available_devices() -> list[str]:
    """The GPUs that Spark has assigned to this task (spark.task.resource.gpu.amount)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("available_devices() is called outside of a Spark task")
    gpus = context.resources().get("gpu")
    return list(gpus.addresses) if gpus is not None else []


def executor_id() -> str:
    """Spark's name of this executor, from the command line of its JVM; "" if Spark runs in local mode."""
    process = os.getpid()
    while process > 1:
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            if "--executor-id" in words[:-1]:
                return words[words.index("--executor-id") + 1]
            with open(f"/proc/{process}/stat") as file:
                process = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            break
    return ""
