"""A name is taken until the caller has waited for its operation or found it done, whatever the speed of the ranks.

Operations without a name match by their number, whatever the speed of ranks and threads.
"""

import random
import sys
import threading
import time

import farandole
import horovod.torch as hvd
import pytest
import torch
from expect import raises
from launch import checks_of, require
from limits import allowed


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def twice(name):
    return hvd.allreduce_async(torch.ones(3), name=name, op=hvd.Sum)


def refused(name):
    raises(ValueError, f"'allreduce.{name}' is in flight already on rank {hvd.rank()}", twice, name)


def sum_of(handle):
    return hvd.synchronize(handle).tolist()


def everybody():
    return [float(hvd.size())] * 3


def check_a_second_submission_is_refused_on_all_ranks_alike():
    """Ranks submit at different times, so that the operation is done on some ranks before the second submission."""
    for late in range(hvd.size()):
        for pause in (0.0, 0.02):
            if hvd.rank() == late:
                time.sleep(pause)
            handle = twice("early")
            if hvd.rank() != late:
                time.sleep(pause)
            refused("early")
            assert sum_of(handle) == everybody()
            assert sum_of(twice("early")) == everybody()


def check_the_name_stays_taken_after_the_operation_is_done():
    handle = twice("done")
    hvd.barrier()
    hvd.allreduce(torch.ones(1))  # the operation is done on all ranks
    refused("done")
    assert sum_of(handle) == everybody()


def check_a_poll_that_finds_it_done_frees_the_name():
    handle = twice("polled")
    end = time.monotonic() + allowed(20)
    while not hvd.poll(handle):
        assert time.monotonic() < end
    assert sum_of(twice("polled")) == everybody()
    assert sum_of(handle) == everybody()


def check_a_group_takes_all_its_names():
    handle = hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], name="pair", op=hvd.Sum)
    raises(ValueError, "pair_1of2", hvd.grouped_allreduce_async, [torch.ones(1), torch.ones(2)], name="pair")
    hvd.synchronize(handle)
    hvd.synchronize(hvd.grouped_allreduce_async([torch.ones(1), torch.ones(2)], name="pair"))


def check_a_failed_operation_frees_its_name_when_it_is_waited_for():
    handle = hvd.allreduce_async(torch.ones(2 + (hvd.rank() == 0)), name="differs")
    raises(hvd.HorovodInternalError, "differs", hvd.synchronize, handle)
    assert hvd.synchronize(hvd.allreduce_async(torch.ones(2), name="differs", op=hvd.Sum)).tolist() == everybody()[:2]


def check_a_failed_broadcast_of_parameters_can_be_repeated():
    """All of its operations are waited for, so that none keeps its name."""
    shapes = [("first", torch.ones(2 + (hvd.rank() == 0))), ("second", torch.ones(2)), ("third", torch.ones(2))]
    raises(hvd.HorovodInternalError, "first", hvd.broadcast_parameters, shapes, 0)
    values = [(name, torch.full((2,), float(hvd.rank()))) for name, _ in shapes]
    hvd.broadcast_parameters(values, 1)
    assert all(torch.equal(value, torch.ones(2)) for _, value in values)


def check_a_failed_sparse_allreduce_can_be_repeated():
    def reduced(rows):
        rows = torch.sparse_coo_tensor([[0]], torch.ones(1, rows), (4, rows))
        return hvd.sparse_allreduce_async(rows, "sparse", hvd.Sum)

    raises(hvd.HorovodInternalError, "sparse", reduced(2 + (hvd.rank() == 0)))
    assert reduced(2)().to_dense()[0].tolist() == everybody()[:2]


def check_blocking_operations_free_their_names():
    for _ in range(3):
        hvd.allreduce(torch.ones(1), name="again")
        farandole.allreduce(1.0, name="again")


def check_automatic_names_do_not_depend_on_when_handles_are_waited_for():
    """In turn, one rank waits for each operation before it starts the next, while the others start all of them."""
    two = [torch.ones(1), torch.ones(2)]
    starts = {
        "allreduce": lambda: hvd.allreduce_async(torch.ones(3), op=hvd.Sum),
        "grouped_allreduce": lambda: hvd.grouped_allreduce_async(two, op=hvd.Sum),
        "allgather": lambda: hvd.allgather_async(torch.ones(1)),
        "grouped_allgather": lambda: hvd.grouped_allgather_async(two),
        "broadcast": lambda: hvd.broadcast_async(torch.ones(3), 0),
        "alltoall": lambda: hvd.alltoall_async(torch.arange(hvd.size())),
        "grouped_reducescatter": lambda: hvd.grouped_reducescatter_async([torch.ones(4), torch.ones(8)]),
    }
    for late in range(hvd.size()):
        for start in starts.values():
            if hvd.rank() == late:
                for _ in range(3):
                    hvd.synchronize(start())
            else:
                for handle in [start() for _ in range(3)]:
                    hvd.synchronize(handle)


def check_joins_of_ranks_at_different_times_match_again():
    """A rank that joins early has started fewer operations without a name than the others."""
    for late in range(hvd.size()):
        for _ in range(1 + (hvd.rank() == late)):
            hvd.synchronize(hvd.allreduce_async(torch.ones(3), op=hvd.Sum))
        assert hvd.join() == late
        for _ in range(2):
            assert sum_of(hvd.allreduce_async(torch.ones(3), op=hvd.Sum)) == everybody()


def check_unnamed_operations_of_several_threads_match():
    """The n-th call of each kind matches the n-th of the other ranks, however their threads are scheduled."""
    kinds = [
        lambda: hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == everybody(),
        lambda: hvd.broadcast(torch.full((2,), float(hvd.rank())), 1).tolist() == [1.0, 1.0],
        lambda: hvd.allgather(torch.ones(1)).tolist() == [1.0] * hvd.size(),
        lambda: hvd.barrier() is None,
    ]
    wrong = []

    def calls(number):
        pauses = random.Random(hvd.rank() * 100 + number)
        for _ in range(40):
            if pauses.random() < 0.3:
                time.sleep(pauses.random() * 0.003)
            if not kinds[number % len(kinds)]():
                wrong.append(number)

    # Two threads for each kind.
    threads = [threading.Thread(target=calls, args=(number,)) for number in range(2 * len(kinds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 4])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
