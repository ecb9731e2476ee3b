"""The top level of the package: NumPy arrays, groups, communicators. Integers and small floats, so sums are exact."""

import concurrent.futures
import os
import random
import sys
import time

import farandole as fdl
import numpy as np
import pytest
from expect import raises
from launch import checks_of, launch, require

INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
REALS = ["float16", "float32", "float64"]


def same(result, expected, dtype=None):
    expected = np.asarray(expected, dtype=dtype)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert (result == expected).all(), (result, expected)


def check_ranks_and_sizes():
    assert not fdl.is_initialized()
    raises(fdl.NotInitializedError, "init", fdl.rank)
    fdl.init()
    fdl.init()  # a second call does nothing
    assert fdl.is_initialized()
    assert fdl.rank() == int(os.environ["FARANDOLE_RANK"]) and fdl.size() == int(os.environ["FARANDOLE_SIZE"])
    assert fdl.local_rank() == fdl.rank() and fdl.local_size() == fdl.size()
    assert (fdl.cross_rank(), fdl.cross_size()) == (0, 1)
    assert fdl.info()["host"] and fdl.world_group().ranks == tuple(range(fdl.size()))


def check_allreduce_of_every_type():
    rank, size = fdl.rank(), fdl.size()
    for dtype in INTEGERS + REALS:
        mine = (np.arange(7) % 3 + rank + 1).astype(dtype)
        all_ranks = np.stack([np.arange(7) % 3 + one + 1 for one in range(size)])
        same(fdl.allreduce(mine), all_ranks.sum(0), dtype)
        same(fdl.allreduce(mine, fdl.MIN), all_ranks.min(0), dtype)
        same(fdl.allreduce(mine, fdl.MAX), all_ranks.max(0), dtype)
        same(fdl.allreduce(mine, fdl.PRODUCT), all_ranks.prod(0), dtype)
    for dtype in INTEGERS:
        mine = np.array([12 + rank, 7]).astype(dtype)
        each = np.stack([np.array([12 + one, 7]) for one in range(size)]).astype(dtype)
        same(fdl.allreduce(mine, fdl.BIT_AND), np.bitwise_and.reduce(each), dtype)
        same(fdl.allreduce(mine, fdl.BIT_OR), np.bitwise_or.reduce(each), dtype)
        same(fdl.allreduce(mine, fdl.BIT_XOR), np.bitwise_xor.reduce(each), dtype)
    truth = np.array([True, False, rank == 0])
    same(fdl.allreduce(truth, fdl.LOGICAL_AND), [True, False, size == 1])
    same(fdl.allreduce(truth, fdl.LOGICAL_OR), [True, False, True])
    same(fdl.allreduce(np.array([float(size * rank)]), fdl.AVERAGE), [sum(range(size))], "float64")
    same(fdl.allreduce(np.array([rank + 1]), fdl.AVERAGE), [(size * (size + 1) // 2) // size], "int64")


def check_averages_divide():
    # A product with the rounded 1/size often is a neighbour of the quotient: of three sevens, 7.0000005.
    numbers = np.concatenate([np.full(100, 7), np.arange(100)])
    with fdl.Communicator() as comm:
        for dtype in REALS:
            mine = numbers.astype(dtype)
            same(fdl.allreduce(mine, fdl.AVERAGE), mine, dtype)
            same(comm.allreduce(mine, op=fdl.AVERAGE), mine, dtype)
            sum_of_one = mine * np.array(fdl.rank() == 0, dtype)
            same(fdl.allreduce(sum_of_one, fdl.AVERAGE), mine / np.array(fdl.size(), dtype), dtype)


def check_allreduce_forms():
    rank, size = fdl.rank(), fdl.size()
    total = sum(range(size))
    same(fdl.allreduce(rank), total, "int64")  # a number
    same(fdl.allreduce([rank, 1.0]), [total, size], "float64")  # a list
    same(fdl.allreduce(np.zeros((0, 3), "float32")), np.zeros((0, 3), "float32"))
    mine = np.full((2, 3), rank, "float32")
    assert fdl.allreduce(mine, out=mine) is mine  # in place
    same(mine, np.full((2, 3), total), "float32")
    same(fdl.allreduce(np.full(5, 2.0), prescale=0.5, postscale=3.0), np.full(5, 3.0 * size))
    large = np.arange(300_000, dtype="float32") % 100 + rank
    same(fdl.allreduce(large), (np.arange(300_000) % 100) * size + total, "float32")


def check_names_match_in_any_order():
    rank, size = fdl.rank(), fdl.size()
    order = range(20) if rank % 2 == 0 else reversed(range(20))
    handles = {i: fdl.allreduce_async(np.full(10 + i, i + rank), name=f"any.{i}") for i in order}
    for i, handle in handles.items():
        same(handle.wait(), np.full(10 + i, i * size + sum(range(size))))
        assert handle.done() and handle.wait() is handle.wait()
    arrays = [np.full(3, rank), np.full((2, 2), 1.5)]
    sums = fdl.grouped_allreduce(arrays, name="grouped")
    same(sums[0], np.full(3, sum(range(size))))
    same(sums[1], np.full((2, 2), 1.5 * size))


def check_gathers():
    rank, size = fdl.rank(), fdl.size()
    rows = np.full((rank + 1, 2), rank, "int32")
    expected = np.concatenate([np.full((one + 1, 2), one, "int32") for one in range(size)])
    gathered = fdl.allgather(rows)
    same(gathered, expected)
    gathered[:] = 9  # the caller owns the memory
    same(fdl.allgather(np.zeros((0, 2) if rank else (1, 2), "float32")), np.zeros((1, 2), "float32"))
    one, two = fdl.grouped_allgather([rows, np.array([rank])])
    same(one, expected)
    same(two, np.arange(size))
    for dtype in INTEGERS + REALS + ["bool"]:
        same(fdl.allgather(np.array([rank % 2]).astype(dtype)), np.arange(size) % 2, dtype)


def check_broadcasts():
    rank, size = fdl.rank(), fdl.size()
    for root in range(size):
        same(fdl.broadcast(np.full(4, rank), root), np.full(4, root))
        mine = np.full(4, rank, "float64")
        fdl.broadcast(mine, root, out=mine)
        same(mine, np.full(4, root), "float64")
    same(fdl.broadcast(np.arange(100_000) + rank, size - 1), np.arange(100_000) + size - 1)


def check_alltoall():
    rank, size = fdl.rank(), fdl.size()
    even = np.repeat(np.arange(size) + 10 * rank, 2)
    same(fdl.alltoall(even), np.repeat(10 * np.arange(size) + rank, 2))
    splits = [(rank + one) % 3 for one in range(size)]
    mine = np.full((sum(splits) + 1, 2), rank)  # the last row is not sent
    out, received = fdl.alltoall(mine, splits)
    assert received == [(one + rank) % 3 for one in range(size)]
    same(out, np.concatenate([np.full(((one + rank) % 3, 2), one) for one in range(size)]))
    raises(ValueError, "splits", fdl.alltoall, mine, [1] * (size + 1))


def check_reducescatter():
    rank, size = fdl.rank(), fdl.size()
    rows = 2 * size + 1  # rank 0 gets one more
    mine = np.arange(rows, dtype="float32") + rank
    whole = np.arange(rows) * size + sum(range(size))
    start, end = (0, 3) if rank == 0 else (2 * rank + 1, 2 * rank + 3)
    same(fdl.reducescatter(mine), whole[start:end], "float32")
    one, two = fdl.grouped_reducescatter([mine, np.ones((size, 2))])
    same(one, whole[start:end], "float32")
    same(two, np.full((1, 2), float(size)))


def check_groups():
    rank, size = fdl.rank(), fdl.size()
    last = fdl.Group([size - 1, 0])  # their order is the order of ranks in the group
    assert last.size == 2 and last.ranks == (size - 1, 0)
    if rank in (0, size - 1):
        assert last.included and last.rank == (1 if rank == 0 else 0)
        same(fdl.allreduce(np.array([rank]), group=last), [size - 1])
        same(fdl.broadcast(np.array([rank]), 0, group=last), [size - 1])
        fdl.barrier(group=last)
    else:
        assert not last.included
        raises(fdl.InvalidArgumentError, f"rank {rank} is not a member", fdl.allreduce, 1, group=last)
    part = fdl.world_group().split(rank % 2, key=-rank)
    assert part.ranks == tuple(one for one in reversed(range(size)) if one % 2 == rank % 2)
    same(fdl.allgather(np.array([rank]), group=part), part.ranks)
    assert fdl.world_group().split(-1 if rank else 0) is None or rank == 0
    raises(ValueError, "different ranks", fdl.Group, [0, 0])
    raises(ValueError, "different ranks", fdl.Group, [size])
    part.free()
    raises(fdl.InvalidArgumentError, "freed", fdl.allreduce, 1, group=part)


def check_communicator():
    rank, size = fdl.rank(), fdl.size()
    everybody = np.arange(size)
    with fdl.Communicator() as comm:
        assert (comm.rank, comm.size) == (rank, size)
        for _ in range(50):
            same(comm.allreduce(np.full(3, rank)), np.full(3, everybody.sum()))
        mine = np.full(3, rank, "float32")
        assert comm.allreduce(mine, mine, op=fdl.MAX) is mine
        same(mine, np.full(3, size - 1), "float32")
        same(comm.allreduce(np.ones(9), postscale=2.0, timeout=30), np.full(9, 2.0 * size))
        reduced = comm.reduce(np.full(2, rank), root=size - 1)
        same(reduced, np.full(2, everybody.sum())) if rank == size - 1 else None
        assert rank == size - 1 or reduced is None
        same(comm.broadcast(np.full(2, rank), root=0), np.zeros(2), "int64")
        same(comm.allgather(np.full(2, rank)), np.stack([everybody, everybody], 1))
        counts = [one + 1 for one in range(size)]
        same(comm.allgather(np.full(rank + 1, rank), counts=counts), np.repeat(everybody, counts))
        same(comm.reduce_scatter(np.arange(2 * size)), np.arange(2 * rank, 2 * rank + 2) * size)
        same(comm.reduce_scatter(np.ones(sum(counts)), counts=counts), np.full(rank + 1, float(size)))
        same(comm.alltoall(np.arange(size) + 10 * rank), 10 * everybody + rank)
        sent = np.repeat(everybody, counts)
        out = comm.alltoall(sent, send_counts=counts, recv_counts=[rank + 1] * size)
        same(out, np.full(size * (rank + 1), rank))
        gathered = comm.gather(np.array([rank]), root=0)
        same(gathered, everybody[:, None]) if rank == 0 else None
        row = np.zeros(2, "int64")
        comm.scatter(np.arange(2 * size), row, root=0)
        same(row, [2 * rank, 2 * rank + 1])
        comm.barrier()
        ring = np.zeros(1, "int64")
        request = comm.irecv(ring, (rank - 1) % size)
        comm.send(np.array([rank]), (rank + 1) % size)
        same(request.wait(), [(rank - 1) % size])
        requests = [comm.iallreduce(np.full(1000, i + rank)) for i in range(5)]
        for i, request in enumerate(requests):
            same(request.wait(), np.full(1000, i * size + everybody.sum()))
            assert request.test()
        raises(ValueError, "divide", comm.alltoall, np.arange(size + 1))
        raises(ValueError, "algorithm", comm.allreduce, np.ones(3), algorithm="no such thing")
    raises(fdl.InvalidArgumentError, "freed", comm.barrier)


def check_other_kinds_of_memory():
    rank, size = fdl.rank(), fdl.size()
    same(fdl.allreduce(bytearray([rank, 1])), [sum(range(size)), size], "uint8")
    import array

    numbers = array.array("d", [rank, 2])
    fdl.allreduce(numbers, out=numbers)
    assert list(numbers) == [sum(range(size)), 2 * size]

    class Exports:  # supports only DLPack
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **_):
            return self.array.__dlpack__()

    same(fdl.allreduce(Exports(np.full((2, 2), rank, "int16"))), np.full((2, 2), sum(range(size))), "int16")
    by_hand = np.full(4, rank, "float32")
    target = np.zeros(4, "float32")
    fdl.allreduce((by_hand.ctypes.data, 10, 4), out=(target.ctypes.data, 10, (4,)))
    same(target, np.full(4, sum(range(size))), "float32")


def check_bad_arguments():
    raises(ValueError, "contiguous", fdl.allreduce, np.ones((2, 4)), out=np.ones((4, 4)).T[:2])
    raises(ValueError, "not supported", fdl.allreduce, np.ones(2, "complex64"))
    raises(ValueError, "neither", fdl.allreduce, object())
    raises(ValueError, "same", fdl.allreduce, np.ones(2), out=np.ones(3))
    raises(ValueError, "same", fdl.allreduce, np.ones(2), out=np.ones(2, "float32"))
    fixed = np.ones(2)
    fixed.flags.writeable = False
    raises(ValueError, "written", fdl.allreduce, fixed, out=fixed)
    raises(ValueError, "root", fdl.broadcast, np.ones(2), fdl.size())
    raises(ValueError, "bool", fdl.allreduce, np.ones(2, bool), fdl.AVERAGE)


def check_join():
    rank, size = fdl.rank(), fdl.size()
    for step in range(rank + 1):  # rank r has r + 1 steps
        contributions = [one for one in range(size) if one >= step]
        same(fdl.allreduce(np.array([10 + rank]), name=f"step.{step}"), [sum(10 + one for one in contributions)])
    assert fdl.join() in range(size)
    same(fdl.allreduce(np.array([1])), [size])  # unnamed operations count from the beginning again


def check_metrics():
    before = fdl.metrics()["named_operations"]
    fdl.allreduce(np.ones(3))
    assert fdl.metrics()["named_operations"] == before + 1
    assert "fusion_bytes" in fdl.config()
    assert "ring" in fdl.explain("allreduce", 4, 1 << 20, "ring")


def check_steps_without_names_repeat():
    """The order of blocking operations without names is detected; no messages are sent afterwards."""

    def step():
        same(fdl.allreduce(np.ones(2, int)), [fdl.size()] * 2)
        same(fdl.broadcast(np.full(1, fdl.rank())), [0])
        fdl.barrier()

    for _ in range(20):
        step()
    before = fdl.metrics()
    for _ in range(50):
        step()
    after = fdl.metrics()
    if fdl.info()["transports"] == "shm":
        assert after["control_messages"] == before["control_messages"], (before, after)
        assert after["locked_steps"] == before["locked_steps"] + 50, (before, after)
    group = fdl.Group(range(fdl.size()))
    with (
        group.lend_name("allreduce") as name,
        group.lend_name("allreduce") as second,
        group.lend_name("barrier") as other,
    ):
        assert len({name, second, other}) == 3
    with group.lend_name("allreduce") as again:
        assert again == name
    raises(fdl.MismatchError, "", lambda: fdl.allreduce(np.ones(2 + fdl.rank())))
    same(fdl.allreduce(np.ones(2, int)), [fdl.size()] * 2)


def check_unnamed_calls_of_threads():
    """The n-th calls of a kind match, whatever the threads of a rank do at the same time."""
    rank, size = fdl.rank(), fdl.size()
    calls = {
        "barrier": lambda: fdl.barrier(),
        "broadcast": lambda: same(fdl.broadcast(np.full(3, rank), size - 1), [size - 1] * 3),
        "allreduce": lambda: same(fdl.allreduce(np.array([rank])), [size * (size - 1) // 2]),
        "the same kind": lambda: same(fdl.allreduce(np.array([rank])), [size * (size - 1) // 2]),
    }

    def repeat(kind):
        delays = random.Random(f"{kind} {rank}")
        for _ in range(40):
            time.sleep(delays.choice((0, 0, 0.001, 0.003)))
            calls[kind]()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        for done in [threads.submit(repeat, kind) for kind in calls]:
            done.result()


def check_counted_names_of_threads():
    """Threads take different numbers, also beside refused calls. They are switched between any two bytecodes."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    calls = [
        lambda: same(fdl.allgather(np.array([1])), [1] * fdl.size()),
        lambda: same(fdl.allgather_async(np.array([1])).wait(), [1] * fdl.size()),
        lambda: raises(fdl.InvalidArgumentError, "not supported", fdl.allgather, np.array(["text"])),
        lambda: raises(fdl.InvalidArgumentError, "not supported", fdl.allgather_async, np.array(["text"])),
    ]

    def repeat(call):
        for _ in range(200):
            call()

    try:
        with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
            for done in [threads.submit(repeat, call) for call in calls]:
                done.result()
    finally:
        sys.setswitchinterval(interval)


def check_names_after_a_join():
    """They count from 0 on all ranks, whether or not a rank has waited for the handle of its join."""
    for i in range(fdl.rank()):
        same(fdl.allreduce_async(np.array([1])).wait(), [fdl.size() - 1 - i])  # the ranks that have not joined
    handle = fdl.join_async()
    while fdl.rank() == 0 and not handle.done():
        time.sleep(0.001)
    if fdl.rank() != 0:
        handle.wait()
    sums = [fdl.allreduce_async(np.array([i])) for i in range(6)]
    assert handle.wait() in range(fdl.size())
    for i, one in enumerate(sums):
        same(one.wait(), [i * fdl.size()])


def check_facts_beside_a_shutdown():
    """A thread that asks while another one ends the world gets an answer or the error of a call after the end."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask():
        with pytest.raises(fdl.NotInitializedError):
            while True:
                fdl.info()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        time.sleep(0.2)
        fdl.shutdown()
        for done in asking:
            done.result()
    sys.setswitchinterval(interval)
    fdl.init()


def check_shutdown_and_again():
    fdl.barrier()
    fdl.shutdown()
    fdl.shutdown()
    assert not fdl.is_initialized()
    raises(fdl.NotInitializedError, "init", fdl.allreduce, np.ones(2))


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_over_tcp(check):
    require(sys.modules[__name__], 2, check, {"FARANDOLE_TRANSPORT": "tcp"})


def alone():
    fdl.init()
    assert (fdl.rank(), fdl.size()) == (0, 1)
    same(fdl.allreduce(np.arange(4)), np.arange(4))
    same(fdl.allgather(np.arange(4)), np.arange(4))
    assert fdl.join() == 0


def test_a_job_of_one_rank_needs_no_launcher():
    launch(1, alone)


def meet():
    fdl.init()
    same(fdl.allreduce(np.array([1])), [fdl.size()])


def test_a_file_can_be_the_rendezvous(tmp_path):
    launch(2, meet, rendezvous=f"file://{tmp_path}/meet")


def child_of_a_fork():
    fdl.init()
    fdl.barrier()
    child = os.fork()
    if child == 0:
        code = 3 if fdl.is_initialized() else 0
        try:
            fdl.rank()
            code = 4
        except fdl.NotInitializedError:
            pass
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    same(fdl.allreduce(np.array([1])), [fdl.size()])


def test_a_forked_child_has_no_world():
    launch(2, child_of_a_fork, fresh=True)
