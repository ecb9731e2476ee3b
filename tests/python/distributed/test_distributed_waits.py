"""Waits for operations of torch.distributed: Work.wait(timeout), the timeout of a group, and futures.

wait(timeout) ends at its time and ends nothing else: the operation stays in flight, and completes when the late rank
comes. The timeout of a group ends the group on all its ranks, with the late rank as its culprit.
"""

import datetime
import os
import signal
import statistics
import threading
import time

import farandole
import pytest
import torch
import torch.distributed as dist
from launch import launch
from test_distributed_failures import raises, rank, size, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT_S = 0.05
TRIES = int(os.environ.get("WAIT_TRIES", "5"))


def seconds(number):
    return datetime.timedelta(seconds=number)


def sums(count, group):
    tensors = [torch.full((3,), float(rank + 1)) for _ in range(count)]
    return tensors, [dist.all_reduce(one, group=group, async_op=True) for one in tensors]


def finish(tensors, works, group):
    """Asserts that all results are right and that the group stays usable."""
    for work, tensor in zip(works, tensors):
        assert work.wait() and work.is_success()
        assert tensor.tolist() == [3.0] * 3
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == size


def check_error(error, *parts):
    assert isinstance(error, dist.DistBackendError) and error.culprit_rank == 1, error.fields()
    for part in parts:
        assert part in str(error), f"{part!r} is not in {str(error)!r}"


def waits_end_at_their_time():
    """Rank 1 starts its operations when rank 0 has stopped waiting; the last of one or of three is waited for."""
    group = dist.new_group()
    for count in (1, 3):
        late = []
        for _ in range(TRIES):
            if rank == 1:
                dist.barrier()
            tensors, works = sums(count, group)
            if rank == 0:
                begin = time.monotonic()
                error = raises(farandole.TimeoutError, "0.05 s", works[-1].wait, seconds(LIMIT_S))
                late.append((time.monotonic() - begin - LIMIT_S) * 1e3)
                check_error(error, "allreduce of 3 float32 was not finished within the 0.05 s", "waits for rank 1",
                            "in group '", "stays in flight", "call wait() again")  # fmt: skip
                assert error.operation == "allreduce" and error.group
                assert not works[-1].is_completed()
                dist.barrier()
            finish(tensors, works, group)
        if rank == 0:
            print(
                f"{count} in flight: late by {statistics.median(late):.1f} ms, at most {max(late):.1f} ms", flush=True
            )
            assert min(late) >= 0 and statistics.median(late) < 500, late
    dist.destroy_process_group(group)


def several_threads_wait():
    """One thread waits without a deadline and drives; another thread's deadline is met."""
    group = dist.new_group()
    if rank == 1:
        dist.barrier()
    tensors, works = sums(2, group)
    if rank == 0:
        patient = threading.Thread(target=works[0].wait)
        patient.start()
        begin = time.monotonic()
        for work in works:
            check_error(raises(farandole.TimeoutError, "stays in flight", work.wait, seconds(LIMIT_S)), "rank 1")
        assert time.monotonic() - begin < 5
        dist.barrier()
        patient.join()
    finish(tensors, works, group)


def messages_are_waited_for():
    group = dist.new_group()
    tensor = torch.full((1000,), float(rank))
    if rank == 0:
        work = dist.irecv(tensor, 1, group=group, tag=5)
        error = raises(farandole.TimeoutError, r"recv of 4000 bytes from rank 1 \(tag 5\) was not finished within the "
                                               r"0.05 s",
                       work.wait, seconds(LIMIT_S))  # fmt: skip
        check_error(error, "stays in flight")
        dist.barrier()
    else:
        dist.barrier()
        work = dist.isend(tensor, 0, group=group, tag=5)
    work.wait(seconds(30))
    assert tensor.tolist() == [1.0] * 1000
    dist.barrier(group)


def stopped_ranks_are_named():
    """Rank 1 is stopped, as by SIGSTOP or a debugger. It replies to nothing, and continues later."""
    group = dist.new_group()
    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    tensors, works = [], []
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while "(stopped)" not in open(f"/proc/{pids[1]}/status").read():
            time.sleep(0.01)
        tensors, works = sums(3, group)
        begin = time.monotonic()
        try:
            for _ in range(3):
                check_error(
                    raises(farandole.TimeoutError, "stays in flight", works[2].wait, seconds(LIMIT_S)), "rank 1"
                )
        finally:
            os.kill(pids[1], signal.SIGCONT)
        assert time.monotonic() - begin < 5
    if rank == 1:
        tensors, works = sums(3, group)
    finish(tensors, works, group)


def callbacks_may_wait():
    """A wait in the callback of a future, which runs in the thread that otherwise drives."""
    group = dist.new_group()
    tensor = torch.ones(1)

    def waits(_):
        second = torch.ones(1)
        dist.all_reduce(second, group=group, async_op=True).wait(seconds(30))
        return second.item()

    assert dist.all_reduce(tensor, group=group, async_op=True).get_future().then(waits).wait() == size


def the_waiting_thread_completes_a_future():
    group = dist.new_group()
    threads = []
    tensor = torch.ones(2)
    if rank == 1:
        dist.barrier()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    if rank == 0:
        future = work.get_future()
        assert future is work.get_future() and not future.done()
        chained = future.then(lambda done: threads.append(threading.current_thread()) or done.value()[0].sum().item())
        threading.Timer(0.1, lambda: dist.barrier()).start()
        assert future.wait()[0] is tensor and future.done() and future.value()[0] is tensor
        assert chained.wait() == 2 * size
        assert threads == [threading.main_thread()]
    work.wait()
    # The future of a completed work is complete at once.
    future = work.get_future()
    assert future.done() and future.wait()[0] is tensor and tensor.tolist() == [2.0, 2.0]


def two_futures_of_one_operation():
    """The futures of a combined work and of one of its parts are both completed."""
    group = dist.new_group()
    if rank == 1:
        dist.barrier()
    group._start_coalescing()
    parts = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for _ in range(2)]
    whole = group._end_coalescing()
    if rank == 0:
        futures = [one.get_future() for one in (*parts, whole)]
        dist.barrier()
        for future in futures:
            assert all(tensor.item() == size for tensor in future.wait())
    whole.wait()


def waits():
    start()
    for check in (waits_end_at_their_time, several_threads_wait, messages_are_waited_for, stopped_ranks_are_named,
                  callbacks_may_wait, the_waiting_thread_completes_a_future, two_futures_of_one_operation):  # fmt: skip
        check()
        dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_timed_out_wait_leaves_the_operation_in_flight(transport):
    # A stopped rank is not declared lost during the test, even on a slow machine.
    launch(2, waits, {"FARANDOLE_TRANSPORT": transport, "FARANDOLE_LOST_AFTER_S": "30"})


def the_other_dies():
    """A wait with a deadline ends early with the error of a rank that is lost."""
    start()
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.get("rank 0 waits")  # blocks until it is set
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    store.set("rank 0 waits", "")
    error = raises(farandole.PeerLostError, "rank 1", work.wait, seconds(50))
    assert error.culprit_rank == 1 and time.monotonic() - begin < 20
    raises(farandole.PeerLostError, "rank 1", dist.all_reduce(torch.ones(1), async_op=True).get_future().wait)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_lost_rank_ends_a_wait(transport):
    launch(2, the_other_dies, {"FARANDOLE_TRANSPORT": transport}, codes=[0, -signal.SIGKILL])


def groups_time_out():
    """Each kind of call that rank 1 does not make: both ranks get one error, which names rank 1 and the remedy.

    What rank 0 gave before its time was over is still good, so the first call of rank 1 may succeed: a later one fails.
    """
    start()
    few, many = torch.ones(10), torch.ones(1_000_000)
    calls = {
        "allreduce": lambda group: dist.all_reduce(few, group=group),
        "allreduce of many": lambda group: dist.all_reduce(many, group=group),
        "barrier": dist.barrier,
        "broadcast": lambda group: dist.broadcast(few, 1, group=group),
        "allgather": lambda group: dist.all_gather([few, few.clone()], few.clone(), group=group),
        "message": lambda group: dist.recv(few, 1, group=group) if rank == 0 else dist.send(few, 0, group=group),
    }

    def repeat(call, group):
        for _ in range(100 if rank == 1 else 1):
            call(group)
            time.sleep(0.02)

    for kind, call in calls.items():
        group = dist.new_group(timeout=seconds(0.3))
        if rank == 1:
            dist.barrier()
        error = raises(farandole.TimeoutError, kind.split()[0] + " in group '", repeat, call, group)
        check_error(error, "was not finished before its deadline", "it waits for rank 1", "raise the timeout")
        if rank == 0:
            dist.barrier()
    # The limit of a wait that is longer than the group's leaves the group's error.
    group = dist.new_group(timeout=seconds(0.3))
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        check_error(raises(farandole.TimeoutError, "before its deadline", work.wait, seconds(30)), "raise the timeout")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_timeout_of_a_group_names_the_late_rank(transport):
    launch(2, groups_time_out, {"FARANDOLE_TRANSPORT": transport})


def only_the_late_are_named():
    start()
    group = dist.new_group(timeout=seconds(0.5))
    if rank not in (1, 3):
        error = raises(
            farandole.TimeoutError, "it waits for rank 1 .* and rank 3 ", dist.all_reduce, torch.ones(1), group=group
        )
        assert error.culprit_rank == 1
    dist.barrier()
    dist.destroy_process_group()


def test_all_late_ranks_of_a_host_are_named():
    launch(4, only_the_late_are_named)


def a_backward_pass_times_out():
    """The error of a training script whose other rank sleeps."""
    start(timeout=seconds(1))
    model = DistributedDataParallel(nn.Linear(10, 10))
    model(torch.ones(2, 10)).sum().backward()
    if rank == 1:
        time.sleep(2.5)
    error = raises(
        RuntimeError,
        "TimeoutError: allreduce in group '.*was not finished before its deadline: it waits for rank 1|allreduce in "
        "group '.*it waits for rank 1",
        lambda: model(torch.ones(2, 10)).sum().backward(),
    )
    assert "raise the timeout" in str(error)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_training_script_can_read_the_late_rank(transport):
    launch(2, a_backward_pass_times_out, {"FARANDOLE_TRANSPORT": transport})


def ctrl_c_ends_a_wait():
    """Only a blocking collective ends its group. An operation that was waited for stays in flight."""
    start()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    received, summed = torch.zeros(1), torch.ones(1)
    if rank == 0:
        in_flight = dist.irecv(received, 1)
        for action in (in_flight.wait, lambda: dist.all_reduce(summed)):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                action()
        dist.send(summed, 1)  # rank 1 may begin
        in_flight.wait()
        assert received.item() == 5
    else:
        dist.recv(received, 0)
        raises(dist.DistBackendError, "its program was interrupted", lambda: [dist.barrier() for _ in range(3)])
        dist.send(torch.full((1,), 5.0), 0)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ctrl_c_ends_a_wait(transport):
    launch(2, ctrl_c_ends_a_wait, {"FARANDOLE_TRANSPORT": transport})
