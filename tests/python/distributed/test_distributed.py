"""backend="farandole": every operation, reduction and type of torch.distributed.

Sums are of small integers, so exact.
"""

import datetime
import os
import sys
import tempfile
import threading
import warnings

import farandole
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from expect import raises
from farandole.torch.distributed import Options, monitored_barrier
from launch import checks_of, require
from torch.distributed.distributed_c10d import _coalescing_manager

warnings.simplefilter("ignore", FutureWarning)  # new names of old functions, which older versions do not have
SIZES = [2, 4]
REALS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MOVED = [*REALS, *INTEGERS, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
         torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]  # fmt: skip


def same(result, expected):
    expected = torch.as_tensor(expected)
    assert result.shape == expected.shape, (result, expected)
    wide = torch.complex128 if result.is_complex() else torch.float64
    assert torch.equal(result.to(wide), expected.to(wide)), (result, expected)


def values(rank, dtype=torch.float32, count=6):
    """Small numbers of that rank; for bool a pattern."""
    plain = (torch.arange(count) + rank) % 3
    if dtype.is_complex:
        return torch.complex(plain.double(), 1.0 - plain.double()).to(dtype)
    return plain.to(dtype)


def each(dtype=torch.float32, count=6):
    return [values(one, dtype, count) for one in range(dist.get_world_size())]


def me():
    return dist.get_rank(), dist.get_world_size()


def check_init_by_file():
    """No variable of farandole is set: the ranks share only the store."""
    rank, size = int(os.environ.pop("FARANDOLE_RANK")), int(os.environ.pop("FARANDOLE_SIZE"))
    key, place = os.environ.pop("FARANDOLE_JOB_KEY"), os.environ.pop("FARANDOLE_RENDEZVOUS")
    os.environ["MASTER_PORT"] = place.rpartition(":")[2]
    store = os.path.join(tempfile.gettempdir(), f"farandole-store-{key}")
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size)
    assert dist.get_backend() == "farandole" and dist.is_initialized() and me() == (rank, size)
    assert type(dist.group.WORLD).__module__ == "farandole.torch.distributed.process_group"
    assert not farandole.is_initialized()
    raises(ValueError, "twice", dist.init_process_group, "farandole")


def check_allreduce_of_every_type_and_operation():
    ops = dist.ReduceOp
    folds = {ops.SUM: torch.sum, ops.PRODUCT: torch.prod, ops.MIN: torch.amin, ops.MAX: torch.amax}
    rank, size = me()
    for dtype in [*REALS, *INTEGERS]:
        stack = torch.stack(each(torch.float64))
        for op, fold in folds.items():
            tensor = values(rank, dtype)
            assert dist.all_reduce(tensor, op) is None
            same(tensor, fold(stack, 0))
        tensor = values(rank, dtype) * size
        dist.all_reduce(tensor, ops.AVG)
        same(tensor, stack.sum(0))
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.full((3,), 1.0 + rank).to(dtype)
        dist.all_reduce(tensor)
        same(tensor, torch.full((3,), float(sum(range(size + 1)))))
    for dtype in (torch.complex64, torch.complex128):
        tensor = values(rank, dtype)
        dist.all_reduce(tensor)
        same(tensor, torch.stack(each(dtype)).sum(0))
        raises(ValueError, "complex", dist.all_reduce, tensor, ops.MAX)


def check_bits_and_booleans():
    ops = dist.ReduceOp
    rank, size = me()
    bits = [torch.tensor([1 << one, 6, 255 - one], dtype=torch.int32) for one in range(size)]
    for op, fold in ((ops.BAND, torch.bitwise_and), (ops.BOR, torch.bitwise_or), (ops.BXOR, torch.bitwise_xor)):
        tensor, expected = bits[rank].clone(), bits[0]
        for other in bits[1:]:
            expected = fold(expected, other)
        dist.all_reduce(tensor, op)
        same(tensor, expected)
    flags = torch.stack([torch.tensor([one == 0, True, False]) for one in range(size)])
    for op, expected in ((ops.SUM, flags.any(0)), (ops.MAX, flags.any(0)), (ops.BOR, flags.any(0)),
                         (ops.PRODUCT, flags.all(0)), (ops.MIN, flags.all(0)), (ops.BAND, flags.all(0)),
                         (ops.BXOR, flags.sum(0) % 2 == 1)):  # fmt: skip
        tensor = flags[rank].clone()
        dist.all_reduce(tensor, op)
        assert tensor.dtype is torch.bool and torch.equal(tensor, expected), (op, tensor)
    raises(ValueError, "bit", dist.all_reduce, torch.ones(2), ops.BAND)
    raises(ValueError, "AVG is not defined", dist.all_reduce, flags[rank].clone(), ops.AVG)


def check_premultiplied_sums():
    rank, size = me()
    for factor in (0.5, torch.tensor(0.5)):
        tensor = 2 * values(rank)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        same(tensor, torch.stack(each()).sum(0))
    output = torch.empty(3)
    dist.reduce_scatter_tensor(output, 4 * values(rank, count=3 * size), dist._make_nccl_premul_sum(0.25))
    same(output, torch.stack(each(count=3 * size)).sum(0)[3 * rank : 3 * rank + 3])


def check_tensors_that_are_not_plain():
    rank, size = me()
    total = torch.stack(each(count=12)).sum(0).view(3, 4)
    tensor = values(rank, count=12).view(4, 3).clone().t().contiguous().t()  # column by column in memory
    plain = values(rank, count=12).view(3, 4)
    tensor = torch.empty(4, 3).t().copy_(plain)
    assert not tensor.is_contiguous()
    dist.all_reduce(tensor)
    same(tensor, total)
    tensor = torch.empty(4, 3).t().copy_(plain)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    same(tensor, total)
    for shape in ((0,), (3, 0, 2)):
        empty = torch.empty(shape)
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        outputs = [torch.empty(shape) for _ in range(size)]
        dist.all_gather(outputs, empty)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    same(scalar, float(sum(range(size))))
    strided = torch.zeros(8)[::2]
    dist.broadcast(strided if rank else torch.arange(8.0)[::2], 0)
    same(strided if rank else torch.arange(0.0, 8.0, 2), [0.0, 2.0, 4.0, 6.0])
    conjugate = values(rank, torch.complex64).conj()
    outputs = [torch.empty(6, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(outputs, conjugate.resolve_conj())
    for one, output in enumerate(outputs):
        same(output, values(one, torch.complex64).conj().resolve_conj())
    leaf = torch.nn.Parameter(torch.full((2, 3), float(rank)))
    dist.broadcast(leaf, size - 1)
    same(leaf.detach(), torch.full((2, 3), size - 1.0))
    raises(ValueError, "layout", dist.all_reduce, torch.eye(3).to_sparse_csr())


def check_copies_of_every_type():
    rank, size = me()
    for dtype in MOVED:
        bytes_of = lambda tensor: tensor.contiguous().view(torch.uint8)  # noqa: E731 (some types have no ==)
        tensor = values(rank, dtype)
        dist.broadcast(tensor, size - 1)
        assert torch.equal(bytes_of(tensor), bytes_of(values(size - 1, dtype))), dtype
        whole = torch.empty(6 * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, values(rank, dtype))
        expected = torch.cat([bytes_of(one) for one in each(dtype)])
        assert torch.equal(bytes_of(whole), expected), dtype
        outputs = [torch.empty(6, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, values(rank, dtype))
        assert torch.equal(torch.cat([bytes_of(one) for one in outputs]), expected), dtype


def check_gathers_and_scatters():
    rank, size = me()
    mine = values(rank)
    for root in range(size):
        outputs = [torch.zeros(6) for _ in range(size)] if rank == root else None
        dist.gather(mine, outputs, dst=root)
        for output, one in zip(outputs or [], each()):
            same(output, one)
        output = torch.zeros(6)
        dist.scatter(output, [one + 10 for one in each()] if rank == root else None, src=root)
        same(output, mine + 10)
        tensor = mine.clone()
        dist.reduce(tensor, root)
        same(tensor, torch.stack(each()).sum(0) if rank == root else mine)
    # Of different sizes; every rank passes all of them.
    outputs = [torch.zeros(one + 1) for one in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for one, output in enumerate(outputs):
        same(output, torch.full((one + 1,), float(one)))
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, [torch.full((one + 1,), float(rank + one)) for one in range(size)])
    same(output, torch.full((rank + 1,), float(sum(range(size)) + size * rank)))
    output = torch.zeros(3)
    dist.reduce_scatter(output, list(values(rank, count=3 * size).split(3)), dist.ReduceOp.MAX)
    same(output, torch.stack(each(count=3 * size)).amax(0)[3 * rank : 3 * rank + 3])
    whole = torch.zeros(size, 6)
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.stack(each()))
    raises(ValueError, "elements", dist.all_gather_into_tensor, torch.zeros(7 * size), mine)
    raises(ValueError, "tensors for", dist.all_gather, [torch.zeros(6)] * (size + 1), mine)
    raises((ValueError, RuntimeError), "type", dist.all_gather_into_tensor, torch.zeros(6 * size).long(), mine)


def check_alltoall():
    rank, size = me()
    output = torch.zeros(2 * size)
    dist.all_to_all_single(output, torch.arange(2.0 * size) + 100 * rank)
    same(output, torch.cat([torch.tensor([2.0 * rank, 2.0 * rank + 1]) + 100 * one for one in range(size)]))
    # Rank r sends r + d rows to d.
    sent = [rank + to for to in range(size)]
    output = torch.zeros(sum(sent), 3)
    dist.all_to_all_single(output, torch.full((sum(sent), 3), float(rank)), sent, sent)
    same(output, torch.cat([torch.full((rank + one, 3), float(one)) for one in range(size)]))
    outputs = [torch.zeros(rank + one + 1, dtype=torch.int64) for one in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + to + 1,), 10 * rank + to) for to in range(size)])
    for one, output in enumerate(outputs):
        same(output, torch.full((rank + one + 1,), 10 * one + rank))
    pairs = torch.zeros(size, dtype=torch.complex64)
    dist.all_to_all_single(pairs, torch.full((size,), complex(rank, 1)))
    same(pairs, torch.tensor([complex(one, 1) for one in range(size)]))
    raises(ValueError, "splits", dist.all_to_all_single, torch.zeros(size), torch.zeros(size), [1] * size, [2] * size)


def check_work_and_futures():
    rank, size = me()
    total = torch.stack(each()).sum(0)
    tensors = [values(rank) for _ in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    for tensor in tensors:
        same(tensor, total)
    tensor = values(rank)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    assert work.get_future() is future
    doubled = future.then(lambda done: 2 * done.value()[0])
    same(doubled.wait(), 2 * total)
    same(work.result()[0], total)
    # Operations without a wait progress, and a callback may start and await more.
    tensor = values(rank)
    nested = (
        dist.all_reduce(tensor, async_op=True)
        .get_future()
        .then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0])
    )
    same(nested.wait(), total * size)
    work = dist.barrier(async_op=True)
    assert work.wait(datetime.timedelta(seconds=30))
    dropped = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(10)]
    del dropped
    dist.barrier()


def check_messages():
    rank, size = me()
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 12, 13, 70_000):  # short ones are sent in their envelope
        mine, other = torch.full((count,), float(rank)), torch.full((count,), -1.0)
        works = [dist.irecv(other, left), dist.isend(mine, right)]
        for work in works:
            work.wait()
        same(other, torch.full((count,), float(left)))
    if rank == 0:
        for tag in (1, 2, 3):
            dist.send(torch.full((100 * tag,), float(tag)), 1, tag=tag)
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (7, 7, 8)]
        for work in works:
            work.wait()
        dist.send(torch.zeros(3), 1)
    elif rank == 1:
        for tag in (3, 1, 2):  # by tag, not in the order of sending
            tensor = torch.zeros(100 * tag)
            assert dist.recv(tensor, 0, tag=tag) == 0
            same(tensor, torch.full((100 * tag,), float(tag)))
        tensors = [torch.zeros(1) for _ in range(3)]
        works = [dist.irecv(tensor, 0, tag=tag) for tensor, tag in zip(tensors, (8, 7, 7))]
        for work in works:
            work.wait()
        same(torch.cat(tensors), [8.0, 7.0, 7.0])
        dist.recv(torch.zeros(3), 0)
    if rank == 0:
        seen = set()
        for _ in range(2 * (size - 1)):
            tensor = torch.zeros(1, dtype=torch.int64)
            sender = dist.recv(tensor, tag=9)  # from any rank
            assert tensor.item() // 10 == sender
            seen.add(tensor.item())
        assert seen == {10 * one + turn for one in range(1, size) for turn in range(2)}
    else:
        for turn in range(2):
            dist.send(torch.tensor([10 * rank + turn]), 0, tag=9)
    strided = torch.zeros(6)[::2]
    batch = [dist.P2POp(dist.irecv, strided, left), dist.P2POp(dist.isend, torch.full((3,), rank + 1.0), right)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(strided, torch.full((3,), left + 1.0))
    raises(ValueError, "no rank", dist.group.WORLD.send, [torch.zeros(1)], size, 0)


def check_coalesced_forms():
    rank, size = me()
    total = torch.stack(each()).sum(0)
    for asynchronous in (False, True):
        tensors = [values(rank), values(rank, torch.float64), values(rank).view(2, 3), torch.empty(3, 2).t().zero_()]
        with _coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if asynchronous:
            manager.wait()
        for tensor, expected in zip(tensors, (total, total, total.view(2, 3), torch.zeros(2, 3))):
            same(tensor, expected)
        large = [torch.full((200_000,), float(rank)) for _ in range(3)]
        with _coalescing_manager(async_ops=asynchronous) as manager:
            for tensor in large:
                dist.all_reduce(tensor, dist.ReduceOp.MAX)
        if asynchronous:
            manager.wait()
        assert all(torch.equal(tensor, torch.full((200_000,), size - 1.0)) for tensor in large)
        outputs = [torch.zeros(6 * size), torch.zeros(3 * size)]
        with _coalescing_manager(async_ops=asynchronous) as manager:
            dist.all_gather_into_tensor(outputs[0], values(rank))
            dist.all_gather_into_tensor(outputs[1], values(rank, count=3))
        if asynchronous:
            manager.wait()
        same(outputs[0], torch.cat(each()))
        same(outputs[1], torch.cat(each(count=3)))
        outputs = [torch.zeros(2), torch.zeros(3)]
        with _coalescing_manager(async_ops=asynchronous) as manager:
            dist.reduce_scatter_tensor(outputs[0], values(rank, count=2 * size))
            dist.reduce_scatter_tensor(outputs[1], values(rank, count=3 * size))
        if asynchronous:
            manager.wait()
        for count, output in ((2, outputs[0]), (3, outputs[1])):
            same(output, torch.stack(each(count=count * size)).sum(0)[count * rank : count * (rank + 1)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [values(rank), values(rank)]
        dist.all_reduce_coalesced(tensors)
        for tensor in tensors:
            same(tensor, total)
        lists = [[torch.zeros(6), torch.zeros(2)] for _ in range(size)]
        dist.all_gather_coalesced(lists, [values(rank), values(rank, count=2)])
        for one, pair in enumerate(lists):
            same(pair[0], values(one))
            same(pair[1], values(one, count=2))


def check_objects():
    rank, size = me()
    thing = {"from": rank, "large": "x" * (1000 * (rank + 1))}
    gathered = [None] * size
    dist.all_gather_object(gathered, thing)
    assert [one["from"] for one in gathered] == list(range(size))
    things = [thing, rank, None]
    dist.broadcast_object_list(things, src=1)
    assert things[0]["from"] == 1 and things[1:] == [1, None]
    gathered = [None] * size if rank == 1 else None
    dist.gather_object(thing, gathered, dst=1)
    assert rank != 1 or [len(one["large"]) for one in gathered] == [1000 * (one + 1) for one in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, list("abcd")[:size] if rank == 0 else None, src=0)
    assert mine == ["abcd"[rank]]
    if rank == 0:
        dist.send_object_list([1, "two"], dst=1)
    elif rank == 1:
        received = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [1, "two"]


def check_functional_collectives():
    rank, size = me()
    total = torch.stack(each()).sum(0)
    same(funcol.all_reduce(values(rank), "sum", dist.group.WORLD) + 0, total)
    same(funcol.all_gather_tensor(values(rank), 0, dist.group.WORLD) + 0, torch.cat(each()))
    summed = torch.stack(each(count=2 * size)).sum(0)
    mine = slice(2 * rank, 2 * rank + 2)
    same(funcol.reduce_scatter_tensor(values(rank, count=2 * size), "sum", 0, dist.group.WORLD) + 0, summed[mine])
    same(funcol.broadcast(values(rank), 1, dist.group.WORLD) + 0, values(1))
    one, two = funcol.all_reduce_coalesced([values(rank), values(rank, torch.float64)], "sum", dist.group.WORLD)
    same(one + 0, total)
    same(two + 0, total)
    one, two = funcol.all_gather_into_tensor_coalesced([values(rank), values(rank, count=2)], dist.group.WORLD)
    same(one + 0, torch.cat(each()))
    same(two + 0, torch.cat(each(count=2)))
    (one,) = funcol.reduce_scatter_tensor_coalesced([values(rank, count=2 * size)], "sum", [0], dist.group.WORLD)
    same(one + 0, summed[mine])
    swapped = funcol.all_to_all_single(torch.arange(float(size)) + 10 * rank, None, None, dist.group.WORLD)
    same(swapped + 0, torch.tensor([10.0 * one + rank for one in range(size)]))


def check_groups():
    rank, size = me()
    members = [size - 1, 0]
    group = dist.new_group(members)
    if rank in members:
        assert dist.get_world_size(group) == 2 and dist.get_group_rank(group, rank) == dist.get_rank(group)
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((3,), float(size - 1)))
        dist.broadcast(tensor, size - 1, group=group)
        dist.destroy_process_group(group)
    alone = [dist.new_group([one]) for one in range(size)][rank]
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=alone)
    dist.barrier(group=alone)
    same(tensor, torch.full((2,), float(rank)))
    part = dist.group.WORLD.split_group([0, 1], group_name="the first two")
    assert (part is None) == (rank > 1)
    if part is not None:
        tensor = torch.ones(2)
        part.allreduce([tensor]).wait()
        same(tensor, [2.0, 2.0])
        part.shutdown()
    other = dist.new_group(backend="farandole", pg_options=Options(transport="tcp"))  # a separate world
    tensor = torch.ones(70_000)
    dist.all_reduce(tensor, group=other)
    same(tensor[:2], [float(size)] * 2)
    mixed = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=mixed)
    same(tensor[:2], [float(size * size)] * 2)


def check_groups_used_by_several_threads_at_once():
    rank, size = me()
    groups = [dist.new_group() for _ in range(3)]
    trouble = []

    def use(index):
        try:
            for step in range(50):
                tensor = torch.full((100 * (index + 1),), float(rank + step))
                work = dist.all_reduce(tensor, group=groups[index], async_op=step % 2 == 0)
                if work is not None:
                    work.wait()
                assert torch.equal(tensor, torch.full_like(tensor, sum(range(size)) + size * step))
        except BaseException as error:  # raised by the thread that joins
            trouble.append(error)

    # And messages of the whole group beside them, with threads that wait for both ends at once.
    def talk():
        try:
            for step in range(50):
                if rank == 0:
                    dist.send(torch.tensor([step]), 1, tag=5)
                elif rank == 1:
                    tensor = torch.zeros(1, dtype=torch.int64)
                    dist.recv(tensor, 0, tag=5)
                    assert tensor.item() == step
        except BaseException as error:
            trouble.append(error)

    def answer():
        try:
            for step in range(50):
                if rank == 1:
                    dist.send(torch.tensor([step]), 0, tag=6)
                elif rank == 0:
                    tensor = torch.zeros(1, dtype=torch.int64)
                    dist.recv(tensor, 1, tag=6)
                    assert tensor.item() == step
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=use, args=(index,)) for index in range(3)]
    threads += [threading.Thread(target=talk), threading.Thread(target=answer)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble, trouble


def check_barriers():
    dist.barrier()
    dist.barrier(async_op=True).wait()
    monitored_barrier(timeout=datetime.timedelta(seconds=30))
    monitored_barrier(dist.new_group(), datetime.timedelta(seconds=30), wait_all_ranks=True)


def check_destroy_and_init_by_tcp():
    rank, size = me()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group("cpu:farandole", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank,
                            world_size=size, timeout=datetime.timedelta(seconds=60))  # fmt: skip
    same(funcol.all_reduce(values(rank), "sum", dist.group.WORLD) + 0, torch.stack(each()).sum(0))
    dist.destroy_process_group()


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", SIZES)
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
