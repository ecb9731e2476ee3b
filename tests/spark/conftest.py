"""A Spark cluster of two executors with two cores each on this host, for all tests of the folder."""

import os
import sys

os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
os.environ.setdefault("KERAS_BACKEND", "torch")

import pytest

CORES = 4


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local-cluster[2,2,1024]").config("spark.ui.enabled", "false")
    options = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.task.maxFailures": "8",
               "spark.sql.shuffle.partitions": "4", "spark.sql.warehouse.dir": str(folder)}  # fmt: skip
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def four_cores(spark):
    """Waits until both executors are there: a test before may have ended one."""
    from pyspark import BarrierTaskContext

    def meet(rows):
        BarrierTaskContext.get().barrier()
        return rows

    spark.sparkContext.parallelize(range(CORES), CORES).barrier().mapPartitions(meet).collect()
