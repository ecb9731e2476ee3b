"""Jobs whose ranks are processes of agents: results, output, failures of every kind, and ranks that are replaced."""

import io
import os
import pickle
import signal
import sys
import threading
import time

import cloudpickle
import farandole
import pytest
from farandole.integrations.ranks import job as job_module
from farandole.integrations.ranks.elastic_job import ElasticJob, limits_of
from farandole.integrations.ranks.fixed_job import FixedJob
from farandole.integrations.ranks.job import Options
from farandole.integrations.ranks.process import task_of
from limits import allowed
from process_cluster import ProcessCluster, is_gone

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import this module


def task(function, *args):
    return task_of(function, args, {}, cloudpickle.dumps)


def run(function, *args, size=3, options=None, **cluster):
    """The results of a job of `size` ranks; its cluster is in run.cluster."""
    run.cluster = ProcessCluster(task(function, *args), **cluster)
    return FixedJob(size, run.cluster, options or Options(start_timeout_s=60)).run()


def failure_of(function, *args, **more):
    with pytest.raises(farandole.RankError) as caught:
        run(function, *args, **more)
    assert all(one.poll() is not None for one in run.cluster.agents)
    return caught.value


def total_of_ranks():
    import farandole
    import numpy

    farandole.init()
    return int(farandole.allreduce(numpy.array([farandole.rank()]), op="sum")[0])


# ---- Jobs of a fixed number of ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4])
def test_results_are_in_rank_order_and_variables_tell_the_rank(size):
    def work(base):
        import os

        import farandole

        farandole.init()
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        return [base + farandole.rank(), [int(os.environ[f"HOROVOD_{name}"]) for name in names], total_of_ranks()]

    sum_of_ranks = sum(range(size))
    assert run(work, 100, size=size) == [
        [100 + rank, [rank, size, rank, size, 0, 1], sum_of_ranks] for rank in range(size)
    ]


def test_output_has_the_rank_in_front_of_each_line():
    def work():
        import sys

        import farandole

        farandole.init()
        print(f"one\ntwo {farandole.rank()}")
        sys.stderr.write("without an end")
        print("x" * 100_000, end="")

    options = Options(start_timeout_s=60, stdout=io.StringIO(), stderr=io.StringIO())
    run(work, size=2, options=options)
    lines = options.stdout.getvalue().splitlines()
    for rank in range(2):
        own = [line[4:] for line in lines if line.startswith(f"[{rank}] ")]
        assert own[:2] == ["one", f"two {rank}"] and "".join(own[2:]) == "x" * 100_000
    assert sorted(options.stderr.getvalue().splitlines()) == ["[0] without an end", "[1] without an end"]
    options = Options(start_timeout_s=60, stdout=io.StringIO(), stderr=io.StringIO(), timestamps=True)
    run(work, size=1, options=options)
    assert options.stderr.getvalue()[4] == "-" and options.stderr.getvalue().endswith(" [0] without an end\n")


def test_variables_are_set_and_a_job_key_file_of_the_worker_is_not_used(monkeypatch):
    monkeypatch.setenv("FARANDOLE_JOB_KEY_FILE", "/nowhere")

    def work():
        import os

        import farandole

        farandole.init()
        return os.environ["MINE"], "FARANDOLE_JOB_KEY_FILE" in os.environ

    assert run(work, size=2, options=Options(60, variables={"MINE": "1"})) == [("1", False)] * 2


def work_until(how):
    """Rank 1 fails as `how` says; the others wait for it."""
    import os
    import signal
    import sys
    import time

    import farandole

    farandole.init()
    total_of_ranks()
    if farandole.rank() == 1:
        if how == "raise":
            raise KeyError("weights")
        if how == "unpicklable":
            error = ValueError("with a lock")
            error.lock = __import__("threading").Lock()
            raise error
        if how == "exit":
            sys.exit(0)
        if how in ("SIGKILL", "SIGSEGV"):
            os.kill(os.getpid(), getattr(signal, how))
        if how == "agent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        if how == "after":
            import atexit

            atexit.register(os._exit, 7)
            return None
        if how == "result":
            return lambda: __import__("threading").Lock(), __import__("threading").Lock()
    total_of_ranks()


@pytest.mark.parametrize(
    "how, kind, text",
    [
        ("raise", KeyError, "raised KeyError: 'weights'"),
        ("unpicklable", farandole.RankError, "raised RuntimeError: ValueError: with a lock"),
        ("exit", farandole.RankError, "raised SystemExit: 0"),
        ("SIGKILL", farandole.RankError, "died: signal SIGKILL; its last lines are above"),
        ("SIGSEGV", farandole.RankError, "died: signal SIGSEGV; its last lines are above"),
        ("agent", farandole.RankError, "died: its worker was lost"),
        ("after", farandole.RankError, "died: exit code 7 after its function had returned"),
        ("result", TypeError, "the result of rank 1 cannot be pickled"),
    ],
)
def test_the_rank_that_failed_first_is_named(how, kind, text):
    failure = failure_of(work_until, how)
    assert failure.rank == 1 and isinstance(failure, kind)
    assert failure.text.startswith("rank 1 of 3 on ") and text in failure.text
    assert "127.0.0.1, process " in failure.text


def test_a_worker_that_is_killed_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of the workers and their ranks
    failure_of(work_until, "agent")
    assert list(tmp_path.iterdir()) == []


def test_the_job_system_s_own_reason_for_a_loss_is_given():
    failure = failure_of(work_until, "agent", explains="its machine was taken away")
    assert failure.rank == 1 and "died: its machine was taken away" in failure.text


def test_ranks_that_hang_are_ended_soon_after_a_failure():
    def work(path):
        import os
        import time

        import farandole

        farandole.init()
        total_of_ranks()
        if farandole.rank() == 2:
            raise ValueError("one rank fails")
        open(f"{path}.{os.getpid()}", "w").close()
        time.sleep(600)

    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        assert failure_of(work, os.path.join(folder, "process")).rank == 2
        assert time.monotonic() - began < 60
        processes = [int(name.rpartition(".")[2]) for name in os.listdir(folder)]
        assert len(processes) == 2 and all(is_gone(one) for one in processes)


def test_a_worker_that_is_stopped_is_lost(monkeypatch):
    monkeypatch.setattr(job_module, "_PING_S", 0.2)
    monkeypatch.setattr(job_module, "_MOST_UNANSWERED", 50)  # of a worker that is only slow fewer are unanswered

    def work():
        if total_of_ranks() == 3 and farandole.rank() == 1:
            os.kill(os.getppid(), signal.SIGSTOP)

    failure = failure_of(work)
    assert failure.rank == 1 and "died: its worker was lost" in failure.text


def test_too_few_workers_are_reported_with_those_that_came():
    cluster = ProcessCluster(task(total_of_ranks), come=2)
    job = FixedJob(3, cluster, Options(start_timeout_s=600))

    def hello(worker):
        if len(job.workers) == 2:
            job._due = time.monotonic()

    job.on_hello = hello
    with pytest.raises(TimeoutError, match=r"the test started 2 of 3 workers within 600 s: .*process \d+.*free slots"):
        job.run()
    assert all(one.wait(allowed(30)) is not None for one in cluster.agents)


def test_a_job_system_that_does_not_cancel_is_not_awaited():
    class Deaf(ProcessCluster):
        stop_s = 0.2

        def start(self, count, addresses, key, done):
            pass

        def cancel(self):
            self.cancelled = True

    cluster = Deaf(b"")
    with pytest.raises(TimeoutError, match="the test started 0 of 2 workers within 0.1 s; free slots"):
        FixedJob(2, cluster, Options(start_timeout_s=0.1)).run()
    assert cluster.cancelled


def test_a_worker_that_is_lost_before_the_others_came_ends_the_job():
    cluster = ProcessCluster(task(total_of_ranks), come=1)
    job = FixedJob(2, cluster, Options(start_timeout_s=60))
    hello = job.on_hello

    def kill_after(worker):
        hello(worker)
        cluster.agents[0].kill()

    job.on_hello = kill_after
    with pytest.raises(farandole.RankError, match="rank 0 of 2 on .* died: its worker was lost"):
        job.run()


def test_an_interrupt_of_the_driver_ends_all_ranks(tmp_path):
    def work(folder):
        import os
        import time

        import farandole

        farandole.init()
        open(f"{folder}/{os.getpid()}", "w").close()
        time.sleep(60)

    def interrupt():
        while len(os.listdir(tmp_path)) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run(work, str(tmp_path))
    assert run.cluster.cancelled
    limit = time.monotonic() + allowed(30)
    while not all(is_gone(int(one)) for one in os.listdir(tmp_path)):
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_function_that_cannot_be_pickled_is_refused():
    with pytest.raises(ValueError, match="cannot be pickled"):
        task(threading.Lock())


def test_an_error_of_the_job_system_alone_is_raised_as_it_is():
    class Refuses(ProcessCluster):
        def start(self, count, addresses, key, done):
            done([], LookupError("no such queue"))

    with pytest.raises(LookupError, match="no such queue"):
        FixedJob(2, Refuses(b""), Options()).run()


# ---- Elastic jobs ----------------------------------------------------------------------------------------------------


def steps(folder, how, count=8):
    """Elastic work of `count` steps. Rank 1 fails once, after the third step. Returns (rank, sizes at the steps)."""
    import os
    import signal
    import time

    import farandole
    import numpy
    from farandole import elastic

    farandole.init()
    state = elastic.ObjectState(step=0, sizes=[])

    @elastic.run
    def train(state):
        while state.step < count:
            begun = time.monotonic()
            while state.step == 6 and farandole.size() < 3:  # until the lost ranks have been replaced
                assert time.monotonic() < begun + 100, f"{farandole.size()} ranks, and no other has come for 100 s"
                time.sleep(0.05)
                state.check_host_updates()
            state.sizes.append(int(farandole.allreduce(numpy.ones(1), op="sum")[0]))
            state.step += 1
            failed = os.path.join(folder, "failed")
            if state.step == 3 and farandole.rank() == 1 and how != "none" and not os.path.exists(failed):
                open(failed, "w").close()
                if how == "raise":
                    raise KeyError("weights")
                os.kill(os.getpid() if how == "kill" else os.getppid(), signal.SIGKILL)
                time.sleep(60)
            state.commit()
        return farandole.rank(), state.sizes, os.environ["HOROVOD_SIZE"]

    return train(state)


def run_elastic(function, *args, fewest=1, most=3, resets=0, timeout_s=30, variables=None, **cluster):
    run.cluster = ProcessCluster(task(function, *args), **cluster)
    options = Options(start_timeout_s=60, variables=variables or {})
    return ElasticJob(fewest, most, resets, timeout_s, run.cluster, options).run()


@pytest.mark.parametrize("how", ["none", "kill", "raise", "agent"])
def test_a_rank_that_fails_is_replaced(how, tmp_path):
    results = run_elastic(steps, str(tmp_path), how, again=True, fewest=2)
    assert [rank for rank, _, _ in results] == [0, 1, 2]
    for _, sizes, last in results:
        assert sizes == results[0][1] and len(sizes) == 8 and last == "3"
        assert set(sizes) <= {2, 3} and sizes[-1] == 3


def test_a_rank_that_waits_for_others_does_not_lose_its_agent(tmp_path):
    def work(folder):
        import os
        import time

        import farandole

        try:
            open(os.path.join(folder, "first"), "x").close()
        except FileExistsError:
            time.sleep(4)  # longer than an agent may be silent
        farandole.init()
        return farandole.size()

    variables = {"FARANDOLE_LOST_AFTER_S": "1"}
    assert run_elastic(work, str(tmp_path), fewest=2, most=2, variables=variables) == [2, 2]


def test_too_few_ranks_end_the_job_after_the_timeout_with_the_first_cause(tmp_path):
    with pytest.raises(farandole.RankError) as caught:
        run_elastic(steps, str(tmp_path), "agent", fewest=3, timeout_s=1)
    assert "fewer than 3 workers for 1 s" in caught.value.text and caught.value.rank == 1
    assert "died: its worker was lost" in caught.value.text


def test_a_limit_of_resets_ends_the_job(tmp_path):
    def work():
        import farandole
        from farandole import elastic

        @elastic.run
        def train(state):
            total_of_ranks()
            if farandole.rank() == 1:
                raise KeyError("weights")
            while True:
                total_of_ranks()

        farandole.init()
        train(elastic.ObjectState(step=0))

    with pytest.raises(KeyError) as caught:
        run_elastic(work, resets=2, fewest=2, most=2)
    assert caught.value.rank == 1 and "the limit of 2 resets is reached" in caught.value.text


def test_a_function_that_fails_before_init_fails_the_job_at_once():
    def work():
        raise ImportError("no such module")

    with pytest.raises(ImportError, match="no such module"):
        run_elastic(work)


def test_elastic_jobs_need_a_number_between_their_limits():
    assert limits_of(4, None, None) == (4, 4) and limits_of(4, 2, None) == (2, 4) and limits_of(2, 4, None) == (4, 4)
    with pytest.raises(ValueError, match="min_num_proc=3 and max_num_proc=2"):
        limits_of(4, 3, 2)
    with pytest.raises(ValueError, match="min_num_proc=0"):
        limits_of(4, 0, 2)


def test_options_are_checked_and_errors_can_be_pickled():
    with pytest.raises(ValueError, match="start_timeout=0: give a positive number"):
        Options.of(0, None, None, None, None, False)
    given = Options.of("5", {"A": 1}, None, None, ["eth0", "eth1"], 1)
    assert given == Options(5.0, "eth0,eth1", {"A": "1"}, None, None, True)
    failure = failure_of(work_until, "SIGKILL")
    assert str(pickle.loads(pickle.dumps(failure.__cause__))) == str(failure.__cause__)
