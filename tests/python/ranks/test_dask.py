"""farandole.dask on a real cluster of two Dask workers with two threads each."""

import io
import os

import dask
import farandole
import farandole.dask
import pytest
from distributed import Client, LocalCluster
from test_jobs import steps, total_of_ranks, work_until

# A local cluster closes a worker for good if it is away 15 s after one of its losses, even if it is about to return
# from a later one. The tests lose the same worker several times.
LOST_FOR_GOOD = {"distributed.deploy.lost-worker-timeout": "1h"}
BACK_S = 120


@pytest.fixture(scope="module")
def client():
    with (
        dask.config.set(LOST_FOR_GOOD),
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address="127.0.0.1:0", host="127.0.0.1") as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_each_worker_is_a_rank_and_results_are_in_rank_order(client):
    def whole(base, more):
        import farandole

        farandole.init()
        return base + more + farandole.rank(), farandole.local_size(), total_of_ranks()

    assert farandole.dask.run(whole, (100,), {"more": 1}) == [(101, 2, 1), (102, 2, 1)]
    assert farandole.dask.run(whole, (100,), {"more": 1}, client=client, num_proc=4) == [
        (101 + rank, 4, 6) for rank in range(4)
    ]
    first = next(iter(client.nthreads()))
    assert farandole.dask.run(whole, (0, 0), workers=[first], num_proc=2) == [(0, 2, 1), (1, 2, 1)]


def test_output_of_ranks_appears_at_the_client(client):
    output = io.StringIO()
    farandole.dask.run(print, ("a line",), num_proc=2, stdout=output)
    assert sorted(output.getvalue().splitlines()) == ["[0] a line", "[1] a line"]


@pytest.mark.parametrize(
    "how, text",
    [("raise", "raised KeyError: 'weights'"), ("SIGKILL", "died: signal SIGKILL; its last lines are above")],
)
def test_the_rank_that_failed_is_named_with_its_worker(client, how, text):
    with pytest.raises(farandole.RankError) as caught:
        farandole.dask.run(work_until, (how,), num_proc=3)
    assert caught.value.rank == 1 and text in caught.value.text
    assert "rank 1 of 3 on " in caught.value.text and "Dask worker tcp://127.0.0.1:" in caught.value.text


def test_a_lost_worker_is_named_and_the_next_job_runs(client):
    with pytest.raises(farandole.RankError) as caught:
        farandole.dask.run(work_until, ("agent",), num_proc=2)
    assert caught.value.rank == 1 and "died: its worker was lost" in caught.value.text
    client.wait_for_workers(2, timeout=BACK_S)
    assert farandole.dask.run(abs, (-1,), num_proc=2) == [1, 1]


@pytest.mark.parametrize("how", ["kill", "agent"])
def test_an_elastic_job_replaces_a_rank_and_a_worker(client, how, tmp_path):
    client.wait_for_workers(2, timeout=BACK_S)
    results = farandole.dask.run_elastic(steps, (str(tmp_path), how), min_num_proc=1, num_proc=3)
    assert [rank for rank, _, _ in results] == list(range(len(results))) and os.listdir(tmp_path) == ["failed"]
    for _, sizes, _ in results:
        assert sizes == results[0][1] and len(sizes) == 8 and sizes[-1] == 3


def test_bad_arguments_are_named(client):
    client.wait_for_workers(2, timeout=BACK_S)
    with pytest.raises(ValueError, match="num_proc=5: the 2 workers have 4 threads"):
        farandole.dask.run(abs, (1,), num_proc=5)
    with pytest.raises(ValueError, match="num_proc=0: at least one rank"):
        farandole.dask.run(abs, (1,), num_proc=0)
    with pytest.raises(ValueError, match="workers: the cluster has no worker tcp://1.2.3.4:5; it has tcp://127.0.0.1"):
        farandole.dask.run(abs, (1,), workers=["tcp://1.2.3.4:5"])
    with pytest.raises(ValueError, match="min_num_proc=3 and max_num_proc=2"):
        farandole.dask.run_elastic(abs, (1,), min_num_proc=3, max_num_proc=2)
    with pytest.raises(ValueError, match="start_timeout=-1"):
        farandole.dask.run(abs, (1,), start_timeout=-1)


def test_without_a_client_the_remedy_is_named():
    from farandole.integrations.dask.cluster import client_of

    class Asynchronous:
        asynchronous = True

    with pytest.raises(TypeError, match="the client is asynchronous"):
        client_of(Asynchronous())
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", "import farandole.dask; farandole.dask.run(abs, (1,))"], capture_output=True, text=True
    )
    assert "RuntimeError: farandole.dask: there is no active client: create one" in done.stderr
    hidden = "import sys; sys.modules['distributed'] = None; import farandole.dask; farandole.dask.run(abs, (1,))"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True)
    assert "ImportError: farandole.dask needs Dask" in done.stderr and "pip install 'dask[distributed]'" in done.stderr
