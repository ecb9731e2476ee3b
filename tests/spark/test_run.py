"""farandole.spark.run and run_elastic: ranks that are tasks of a real Spark cluster."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import farandole
import farandole.spark
import pytest
from limits import allowed

cloudpickle.register_pickle_by_value(sys.modules[__name__])
from pyspark import cloudpickle as spark_cloudpickle  # noqa: E402

spark_cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors cannot import this module


def total(value):
    import farandole
    import numpy

    return float(farandole.allreduce(numpy.array([float(value)]), op="sum")[0])


def executor():
    """The process of the JVM that this rank belongs to."""
    process = os.getppid()
    while True:
        with open(f"/proc/{process}/cmdline") as file:
            if "--executor-id" in file.read().split("\0"):
                return process
        with open(f"/proc/{process}/stat") as file:
            process = int(file.read().rpartition(")")[2].split()[1])


def work(base, more=0):
    import farandole

    farandole.init()
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return (
        base + more + farandole.rank(),
        [int(os.environ[f"HOROVOD_{name}"]) for name in names],
        total(farandole.rank()),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_results_are_in_rank_order(spark, count):
    results = farandole.spark.run(work, (100,), {"more": 1}, num_proc=count)
    sum_of_ranks = sum(range(count))
    assert results == [(101 + rank, [rank, count, rank, count, 0, 1], sum_of_ranks) for rank in range(count)]


def test_the_number_of_ranks_is_spark_s_parallelism_and_the_function_is_pickled_whole(spark):
    factor = 7
    assert farandole.spark.run(lambda: factor * 6) == [42] * spark.sparkContext.defaultParallelism


def test_output_and_variables(spark):
    def work():
        print("a line", os.environ["MINE"])

    output = io.StringIO()
    farandole.spark.run(work, num_proc=2, env={"MINE": 1}, stdout=output)
    assert sorted(output.getvalue().splitlines()) == ["[0] a line 1", "[1] a line 1"]


def test_horovod_spark_is_the_same(spark):
    import horovod.spark

    assert horovod.spark.run is farandole.spark.run and horovod.spark.run_elastic is farandole.spark.run_elastic


def fail(how, victim):
    import farandole

    farandole.init()
    total(1)
    if farandole.rank() == victim:
        if how == "raise":
            raise KeyError("weights")
        os.kill({"rank": os.getpid, "agent": os.getppid, "executor": executor}[how](), signal.SIGKILL)
        time.sleep(60)
    total(1)


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize(
    "how, text",
    [
        ("raise", "raised KeyError: 'weights'"),
        ("rank", "died: signal SIGKILL; its last lines are above"),
        ("agent", "died: Spark lost its task: "),
        ("executor", "died: Spark lost its executor "),
    ],
)
def test_the_rank_that_failed_is_named_with_its_host_and_executor(spark, how, text, victim):
    with pytest.raises(farandole.RankError) as caught:
        farandole.spark.run(fail, (how, victim), num_proc=4)
    failure = caught.value
    # Two ranks are lost with an executor.
    assert failure.rank == victim or how == "executor" and failure.rank % 2 == victim % 2, failure.text
    assert text in failure.text and "Spark executor " in failure.text and "127.0.0.1" in failure.text
    assert isinstance(failure, KeyError) == (how == "raise")


def test_too_few_slots_are_reported_in_time(spark):
    with pytest.raises(TimeoutError, match=r"5 ranks|started 0 of 5 workers|too few slots"):
        farandole.spark.run(work, (1,), num_proc=5, start_timeout=5)


def test_an_interrupt_ends_all_ranks(spark, tmp_path):
    def work(folder):
        open(f"{folder}/{os.getpid()}", "w").close()
        time.sleep(600)

    def interrupt():
        while len(os.listdir(tmp_path)) < 4:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        farandole.spark.run(work, (str(tmp_path),), num_proc=4)
    limit = time.monotonic() + allowed(60)
    while any(os.path.exists(f"/proc/{one}") for one in os.listdir(tmp_path)):
        assert time.monotonic() < limit
        time.sleep(0.05)


def steps(folder, how):
    """Elastic work of 8 steps. Rank 1 fails once, after the third. Returns (rank, sizes at the steps, HOROVOD_SIZE)."""
    import farandole
    import numpy
    from farandole import elastic

    farandole.init()
    state = elastic.ObjectState(step=0, sizes=[])

    @elastic.run
    def train(state):
        while state.step < 8:
            while state.step == 6 and farandole.size() < 3:
                time.sleep(0.05)
                state.check_host_updates()
            state.sizes.append(int(farandole.allreduce(numpy.ones(1), op="sum")[0]))
            state.step += 1
            failed = os.path.join(folder, "failed")
            if state.step == 3 and farandole.rank() == 1 and how != "none" and not os.path.exists(failed):
                open(failed, "w").close()
                if how == "raise":
                    raise KeyError("weights")
                os.kill({"rank": os.getpid, "agent": os.getppid, "executor": executor}[how](), signal.SIGKILL)
                time.sleep(60)
            state.commit()
        return farandole.rank(), state.sizes, int(os.environ["HOROVOD_SIZE"])

    return train(state)


@pytest.mark.parametrize("how", ["none", "raise", "rank", "agent", "executor"])
def test_ranks_and_executors_that_are_lost_are_replaced(spark, how, tmp_path):
    results = farandole.spark.run_elastic(steps, (str(tmp_path), how), num_proc=4, min_num_proc=1)
    assert [rank for rank, _, _ in results] == list(range(len(results))) and len(results) >= 3
    for _, sizes, last in results:
        assert sizes == results[0][1] and len(sizes) == 8 and sizes[-1] == last == len(results)


def test_bad_arguments_are_named(spark):
    with pytest.raises(ValueError, match="num_proc=0: at least one rank"):
        farandole.spark.run(work, (1,), num_proc=0)
    with pytest.raises(ValueError, match="min_num_proc=3 and max_num_proc=2"):
        farandole.spark.run_elastic(work, (1,), min_num_proc=3, max_num_proc=2)
    with pytest.raises(ValueError, match="start_timeout=0"):
        farandole.spark.run(work, (1,), start_timeout=0)
    with pytest.raises(ValueError, match="cannot be pickled"):
        farandole.spark.run(work, (threading.Lock(),), num_proc=1)


def fresh(program, **variables):
    """The error output of a new interpreter."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=allowed(120)
    )
    return done.stderr


def test_without_a_session_or_pyspark_the_remedy_is_named():
    program = "import farandole.spark; farandole.spark.run(abs, (1,))"
    assert "RuntimeError: farandole.spark: there is no active SparkSession: create one" in fresh(program)
    assert "this session is one of Spark Connect" in fresh(program, SPARK_REMOTE="sc://127.0.0.1")
    hidden = "import sys; sys.modules['pyspark'] = None; " + program
    assert "ImportError: farandole.spark needs PySpark" in fresh(hidden) and "pip install" in fresh(hidden)
