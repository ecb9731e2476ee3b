"""Communicators, groups and requests that several threads, a forked child, or the next world use: errors, and no crash,
no wrong sum, no leak."""

import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import farandole
import numpy as np
import pytest
from expect import fails
from launch import FARANDOLE, launch
from limits import allowed

SUM = 3.0  # of 1.0 on rank 0 and 2.0 on rank 1


def _ones(count=1):
    return np.full(count, 1.0 + farandole.rank())


# ---- Threads ---------------------------------------------------------------------------------------------------------


def one_thread_at_a_time():
    """Rank 0 waits in a thread for rank 1, and uses the communicator in another one meanwhile."""
    farandole.init()
    comm = farandole.Communicator()
    if farandole.rank() == 1:
        farandole.barrier()
        assert comm.allreduce(_ones()) == SUM
    else:
        request = comm.iallreduce(_ones())
        results = []
        thread = threading.Thread(target=lambda: results.append(request.wait()))
        thread.start()
        while True:
            try:
                assert not request.test()
            except farandole.InvalidArgumentError:
                break
        for action in (comm.barrier, comm.free, lambda: comm.allreduce(_ones()), lambda: comm.iallreduce(_ones())):
            refusal = "another call on this communicator is in progress; a communicator belongs to one thread at a time"
            fails(farandole.InvalidArgumentError, refusal, action=action)
        farandole.barrier()
        thread.join()
        assert results[0] == SUM
    assert comm.allreduce(_ones()) == SUM
    comm.free()
    fails(farandole.InvalidArgumentError, "this communicator has been freed", action=comm.barrier)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_communicator_refuses_a_second_thread(transport):
    launch(2, one_thread_at_a_time, {"FARANDOLE_TRANSPORT": transport})


def freed_in_use():
    """Each round one thread works in a communicator or a group that another one frees at a random moment."""
    farandole.init()
    dice = random.Random(farandole.rank())
    refused = 0
    for number in range(12):
        thing = farandole.Communicator() if number % 2 else farandole.Group([0, 1])

        def work(thing=thing, number=number):
            with contextlib.suppress(farandole.Error):  # this rank or the other one has freed it
                for step in range(2000):
                    if number % 2:
                        thing.allreduce(_ones(10000))
                    else:
                        farandole.allreduce(_ones(), name=f"{number} {step}", group=thing)

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(dice.uniform(0, 0.02))
        while thread.is_alive():
            try:
                thing.free()
                break
            except farandole.InvalidArgumentError as error:
                assert "in progress" in str(error) or "another thread is in a call" in str(error), error
                refused += 1
                time.sleep(0.001)
        thread.join()
        thing.free()
    assert refused > 0
    assert farandole.allreduce(_ones(), op=farandole.Op.SUM, name="at the end") == SUM


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_a_thread_uses_is_not_freed(transport):
    launch(2, freed_in_use, {"FARANDOLE_TRANSPORT": transport})


# ---- Forked children -------------------------------------------------------------------------------------------------


def _in_child(action):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def forks_beside_a_request():
    farandole.init()
    comm = farandole.Communicator()
    for step in range(20):
        request = comm.iallreduce(_ones(5000))

        def drops():
            nonlocal request
            del request
            gc.collect()

        def tests():
            fails(farandole.NotInitializedError, "fork", action=request.test)  # noqa: B023

        def waits():
            fails(farandole.NotInitializedError, "fork", action=request.wait)  # noqa: B023

        if farandole.rank() == 0:
            _in_child([drops, tests, waits][step % 3])
        total = request.wait()
        assert (total == SUM).all(), (step, total)
    comm.free()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_forked_child_leaves_the_requests_of_its_parent_alone(transport):
    launch(2, forks_beside_a_request, {"FARANDOLE_TRANSPORT": transport}, fresh=True)


# ---- The end of a world ----------------------------------------------------------------------------------------------


def leaves_a_communicator():
    """Rank LEAVES shuts down. Its process goes on until the others, which wait in the communicator, have an error."""
    done = Path(os.environ["DONE"])

    def others_are_done():
        limit = time.monotonic() + 20
        while len(list(done.iterdir())) < 2 and time.monotonic() < limit:
            time.sleep(0.05)

    farandole.init()
    comm = farandole.Communicator()
    comm.barrier()
    farandole.barrier()  # a rank that is still in the barrier before would get the failure of the next call
    if farandole.rank() == int(os.environ["LEAVES"]):
        farandole.shutdown()
        others_are_done()
        fails(farandole.ShutDownError, "farandole has been shut down", action=comm.barrier)
        return
    begin = time.monotonic()
    error = fails(farandole.Error, action=lambda: comm.allreduce(_ones()))
    assert time.monotonic() - begin < 15, error
    assert error.culprit_rank == int(os.environ["LEAVES"]), error
    (done / str(farandole.rank())).touch()
    others_are_done()  # rank 0 serves the coordinator, which the other one needs until it has its error


@pytest.mark.parametrize("leaves", [0, 1])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_that_wait_in_a_communicator_learn_that_a_rank_has_shut_down(transport, leaves, tmp_path):
    environment = {"FARANDOLE_TRANSPORT": transport, "LEAVES": str(leaves), "DONE": str(tmp_path)}
    launch(3, leaves_a_communicator, environment)


def many_worlds():
    counts = []
    for number in range(12):
        farandole.init()
        comm, group = farandole.Communicator(), farandole.Group([0, 1])
        assert comm.allreduce(_ones()) == SUM
        request = comm.iallreduce(_ones()) if number % 2 else None
        farandole.shutdown()
        if number % 3:
            comm.free()
            group.free()
        del comm, group, request
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[2], counts


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_worlds_leave_no_descriptors(transport):
    launch(2, many_worlds, {"FARANDOLE_TRANSPORT": transport})


def test_a_job_that_is_not_elastic_may_shrink():
    program = "import farandole; farandole.init(); farandole.shrink(); print('size', farandole.size())"
    command = [FARANDOLE, "run", "--quiet", "-np", "2", "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=allowed(60))
    assert done.returncode == 0 and done.stdout.count("size 2") == 2, done.stdout + done.stderr
