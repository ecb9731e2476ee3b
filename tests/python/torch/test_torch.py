"""farandole.torch: every operation, type, form and naming rule of the contract.

Sums are of small integers, so exact.
"""

import sys

import farandole
import farandole.torch as hvd
import pytest
import torch
from launch import checks_of, launch, require

REDUCIBLE = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
ALL = [*REDUCIBLE, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


def same(result, expected, dtype=None):
    expected = torch.as_tensor(expected)
    expected = expected.to(dtype or result.dtype)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert torch.equal(
        result.float() if result.is_floating_point() else result.to(torch.int64),
        expected.float() if result.is_floating_point() else expected.to(torch.int64),
    ), (result, expected)


def raises(kind, text, action, *arguments, **options):
    with pytest.raises(kind, match=text) as caught:
        action(*arguments, **options)
    return caught.value


def ranks():
    return torch.arange(hvd.size())


def check_basics():
    raises(ValueError, "has not been initialized; use hvd.init", hvd.rank)
    raises(hvd.HorovodInternalError, "has not been initialized", hvd.allreduce, torch.ones(1))
    assert not hvd.is_initialized()
    hvd.init()
    hvd.init()
    assert hvd.is_initialized() and hvd.size() == len(hvd.global_process_set.ranks)
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1) and hvd.is_homogeneous()
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)
    assert hvd.nccl_built() == 0 and not hvd.mpi_enabled()


def check_allreduce_of_every_type():
    rank, size = hvd.rank(), hvd.size()
    each = torch.stack([torch.arange(6) % 3 + one for one in range(size)])
    for dtype in REDUCIBLE:
        mine = (torch.arange(6) % 3 + rank).to(dtype).view(2, 3)
        same(hvd.allreduce(mine, op=hvd.Sum), each.sum(0).view(2, 3), dtype)
        same(hvd.allreduce(mine, op=hvd.Min), each.amin(0).view(2, 3), dtype)
        same(hvd.allreduce(mine, op=hvd.Max), each.amax(0).view(2, 3), dtype)
        same(hvd.allreduce(mine, op=hvd.Product), each.prod(0).view(2, 3), dtype)
        same(hvd.allreduce((mine.to(torch.int64) * size).to(dtype), op=hvd.Average), each.sum(0).view(2, 3), dtype)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        same(
            hvd.allreduce(torch.full((3,), 1.0 + rank).to(dtype), op=hvd.Sum),
            torch.full((3,), 1.0 * sum(ranks() + 1)),
            dtype,
        )
    same(hvd.allreduce(torch.tensor([rank == 0, True]), op=hvd.Max), torch.tensor([True, True]))


def check_allreduce_forms():
    rank, size = hvd.rank(), hvd.size()
    total = int(ranks().sum())
    mine = torch.full((4,), float(rank))
    same(hvd.allreduce(mine), torch.full((4,), total / size))  # Average is the default
    same(hvd.allreduce(mine, average=False), torch.full((4,), float(total)))
    same(hvd.allreduce(mine, average=True), torch.full((4,), total / size))
    raises(ValueError, "supersedes", hvd.allreduce, mine, average=True, op=hvd.Sum)
    if size == 3:  # test_horovod.py has the sizes that it can
        raises(NotImplementedError, "power of 2", hvd.allreduce, mine, op=hvd.Adasum)
    same(mine, torch.full((4,), float(rank)))  # nothing above was in place
    handle = hvd.allreduce_async(mine, name="form", op=hvd.Sum)
    assert isinstance(handle, int)
    result = hvd.synchronize(handle)
    same(result, torch.full((4,), float(total)))
    assert hvd.synchronize(handle) is None
    raises(ValueError, str(handle), hvd.poll, handle)
    place = mine.clone()
    handle = hvd.allreduce_async_(place, op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle) is place
    same(place, torch.full((4,), float(total)))
    place = mine.clone()
    assert hvd.allreduce_(place, op=hvd.Max) is place
    same(place, torch.full((4,), float(size - 1)))
    same(hvd.allreduce(torch.tensor(rank), op=hvd.Sum), total)  # no dimensions
    same(hvd.allreduce(torch.zeros(0, 3), op=hvd.Sum), torch.zeros(0, 3))
    same(hvd.allreduce(torch.arange(300_000) % 7 + rank, op=hvd.Sum), (torch.arange(300_000) % 7) * size + total)


def check_scaling():
    rank, size = hvd.rank(), hvd.size()
    same(
        hvd.allreduce(torch.full((3,), 2.0), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        torch.full((3,), 3.0 * size),
    )
    same(hvd.allreduce(torch.full((3,), 5), op=hvd.Sum, prescale_factor=0.5), torch.full((3,), 2 * size))  # toward zero
    same(hvd.allreduce(torch.full((3,), 8.0).half(), postscale_factor=0.25), torch.full((3,), 2.0), torch.float16)
    same(hvd.allreduce(torch.full((3,), rank + 1), op=hvd.Average), torch.full((3,), int((ranks() + 1).sum()) // size))


def check_grouped_allreduce():
    rank, size = hvd.rank(), hvd.size()
    total = int(ranks().sum())
    tensors = [torch.full((n + 1,), rank + n, dtype=torch.float32 if n % 2 else torch.int64) for n in range(5)]
    expected = [torch.full((n + 1,), total + n * size) for n in range(5)]
    for result, one in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), expected):
        same(result, one)
    results = hvd.synchronize(hvd.grouped_allreduce_async(tensors, name="group", op=hvd.Sum))
    for result, one in zip(results, expected):
        same(result, one)
    assert hvd.grouped_allreduce_(tensors, op=hvd.Sum)[2] is tensors[2]
    for tensor, one in zip(tensors, expected):
        same(tensor, one)
    assert hvd.grouped_allreduce([]) == []


def check_allgather():
    rank, size = hvd.rank(), hvd.size()
    expected = torch.cat([torch.full((one + 1, 2), one) for one in range(size)])
    for dtype in ALL:
        same(hvd.allgather(torch.full((2,), rank % 2).to(dtype)), (ranks() % 2).repeat_interleave(2), dtype)
    mine = torch.full((rank + 1, 2), rank)
    same(hvd.allgather(mine), expected)
    same(hvd.synchronize(hvd.allgather_async(mine, name="gather")), expected)
    one, two = hvd.grouped_allgather([mine, torch.tensor([float(rank)])])
    same(one, expected)
    same(two, ranks().float())
    same(hvd.allgather(torch.zeros(0, 3)), torch.zeros(0, 3))
    error = raises(hvd.HorovodInternalError, "dimension", hvd.allgather, torch.tensor(1.0))
    assert isinstance(error, farandole.Error)


def check_broadcast():
    rank, size = hvd.rank(), hvd.size()
    for dtype in ALL:
        same(hvd.broadcast(torch.full((3,), rank % 2).to(dtype), size - 1), torch.full((3,), (size - 1) % 2), dtype)
    mine = torch.full((2, 2), float(rank))
    same(hvd.broadcast(mine, 1, name="cast"), torch.ones(2, 2))
    same(mine, torch.full((2, 2), float(rank)))
    assert hvd.broadcast_(mine, 1) is mine
    same(mine, torch.ones(2, 2))
    same(hvd.synchronize(hvd.broadcast_async(torch.tensor(rank), 0)), 0)
    raises(ValueError, "invalid root rank", hvd.broadcast, mine, size)


def check_alltoall():
    rank, size = hvd.rank(), hvd.size()
    for dtype in ALL:
        mine = (ranks() + rank).remainder(2).to(dtype)
        same(hvd.alltoall(mine), (ranks() + rank).remainder(2), dtype)
    splits = [(rank + one) % 3 for one in range(size)]
    mine = torch.full((sum(splits) + 1, 2), rank)
    expected = torch.cat([torch.full(((one + rank) % 3, 2), one) for one in range(size)])
    for given in (splits, torch.tensor(splits, dtype=torch.int32)):
        output, received = hvd.alltoall(mine, given)
        same(output, expected)
        same(received, [(one + rank) % 3 for one in range(size)], torch.int32)
    output, received = hvd.synchronize(hvd.alltoall_async(ranks(), name="even"))
    same(output, torch.full((size,), rank))
    same(received, [1] * size, torch.int32)
    raises(ValueError, "32-bit", hvd.alltoall, mine, torch.tensor(splits))
    raises(ValueError, "greater than the first", hvd.alltoall, mine, [100] * size)
    raises(ValueError, "number of workers", hvd.alltoall, mine, [1] * (size + 1))
    raises(ValueError, "not provided", hvd.alltoall, torch.ones(size + 1))
    raises(hvd.HorovodInternalError, "dimension", hvd.alltoall, torch.tensor(1.0))


def check_reducescatter():
    rank, size = hvd.rank(), hvd.size()
    whole = torch.arange(2 * size + 1) * size + ranks().sum()
    mine = slice(0, 3) if rank == 0 else slice(2 * rank + 1, 2 * rank + 3)
    for dtype in REDUCIBLE:
        same(hvd.reducescatter((torch.arange(2 * size + 1) + rank).to(dtype), op=hvd.Sum), whole[mine], dtype)
    same(hvd.reducescatter(torch.full((size, 2), float(rank))), torch.full((1, 2), float(ranks().sum()) / size))
    tensors = [torch.ones(size), torch.ones(size, 3)]
    for result, shape in zip(hvd.grouped_reducescatter(tensors, op=hvd.Sum, postscale_factor=0.5), [(1,), (1, 3)]):
        same(result, torch.full(shape, size * 0.5))
    same(hvd.synchronize(hvd.reducescatter_async(torch.ones(size), op=hvd.Sum)), torch.tensor([float(size)]))
    raises(ValueError, "scalar", hvd.reducescatter, torch.tensor(1.0))
    raises(hvd.HorovodInternalError, "AVERAGE and SUM", hvd.reducescatter, torch.ones(size), op=hvd.Max)


def check_invalid_arguments_are_rejected():
    raises(ValueError, "is not supported", hvd.allreduce, torch.ones(2, dtype=torch.complex64))
    raises(ValueError, "contiguous", hvd.allreduce, torch.ones(4, 4).t())
    raises(ValueError, "contiguous", hvd.broadcast_, torch.ones(4, 4)[:, 1], 0)
    raises(ValueError, "dense", hvd.allgather, torch.ones(2).to_sparse())
    if hvd.rank() == 0:  # the others submit later, so the first is certainly in flight
        waiting = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        raises(ValueError, "twice", hvd.allreduce_async, torch.ones(3), name="twice", op=hvd.Sum)
        hvd.barrier()
    else:
        hvd.barrier()
        waiting = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
    same(hvd.synchronize(waiting), torch.full((3,), float(hvd.size())))


def check_names_are_counted_for_each_set_and_operation():
    """A rank that submits more on its own set still matches the others on the set of all."""
    rank, size = hvd.rank(), hvd.size()
    alone = hvd.add_process_set([0])
    if rank == 0:
        for _ in range(3):
            same(hvd.allreduce(torch.ones(2), process_set=alone), torch.ones(2))
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(size)))
    same(hvd.broadcast(torch.tensor([rank]), 0), [0])
    assert hvd.remove_process_set(alone)


def check_calls_without_gradients():
    """Where no gradient can pass, autograd is not used, and the results are those with autograd."""
    size = hvd.size()

    def results(x):
        return [
            hvd.allreduce(x, op=hvd.Sum),
            *hvd.grouped_allreduce([x, x], op=hvd.Sum),
            hvd.allgather(x),
            *hvd.grouped_allgather([x, x]),
            hvd.broadcast(x, 0),
            hvd.alltoall(x),
            hvd.reducescatter(x, op=hvd.Sum),
            *hvd.grouped_reducescatter([x, x], op=hvd.Sum),
        ]

    plain, tracked = torch.ones(size, 2), torch.ones(size, 2, requires_grad=True)
    with torch.no_grad():
        under_no_grad = results(tracked)
    for expected, one, other in zip(results(tracked), results(plain), under_no_grad):
        assert expected.grad_fn is not None and not one.requires_grad and not other.requires_grad
        same(one, expected.detach())
        same(other, expected.detach())


def check_gradients():
    rank, size = hvd.rank(), hvd.size()

    def gradient(operation, shape, weights=None):
        x = (torch.arange(float(torch.Size(shape).numel())).view(shape) + rank).requires_grad_()
        y = operation(x)
        y.backward(torch.full(y.shape, float(rank + 1)) if weights is None else weights)
        return x.grad

    total = float((ranks() + 1).sum())
    same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), (2, 3)), torch.full((2, 3), total))
    same(gradient(lambda x: hvd.allreduce(x, prescale_factor=2.0), (3,)), torch.full((3,), 2 * total / size))
    one, two = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    (sum(part.sum() for part in hvd.grouped_allreduce([one, two], op=hvd.Sum)) * (rank + 1)).backward()
    same(one.grad, torch.full((2,), total))
    same(two.grad, torch.full((3,), total))
    same(gradient(hvd.allgather, (rank + 1, 2)), torch.full((rank + 1, 2), total / size))
    one, two = torch.ones(rank + 1, requires_grad=True), torch.ones(1, requires_grad=True)
    (sum(part.sum() for part in hvd.grouped_allgather([one, two])) * (rank + 1)).backward()
    same(one.grad, torch.full((rank + 1,), total / size))
    same(gradient(lambda x: hvd.broadcast(x, 1), (4,)), torch.full((4,), total / size if rank == 1 else 0.0))
    same(gradient(hvd.alltoall, (size,)), (ranks() + 1).float())
    splits = [1] * size
    same(
        gradient(lambda x: hvd.alltoall(x, splits)[0], (size + 1,)), torch.cat([(ranks() + 1).float(), torch.zeros(1)])
    )
    x = torch.full((3,), 2.0, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16).sum().backward()
    same(x.grad, torch.full((3,), float(size)), torch.float32)
    raises(NotImplementedError, "Average and op=Sum", lambda: hvd.allreduce(x, op=hvd.Max).sum().backward())


def check_gradients_of_reducescatter_are_those_of_horovod():
    rank, size = hvd.rank(), hvd.size()

    def gradients(operation, *shapes):
        tensors = [torch.ones(shape, requires_grad=True) for shape in shapes]
        sum(part.sum() for part in operation(tensors)).mul(rank + 1).backward()
        return [tensor.grad for tensor in tensors]

    gathered = (ranks() + 1).float()  # the gradients of all ranks
    rows = gathered[:, None].expand(size, 2)
    same(*gradients(lambda one: [hvd.reducescatter(one[0], op=hvd.Sum)], (size, 2)), rows * size)
    same(*gradients(lambda one: [hvd.reducescatter(one[0])], (size, 2)), rows)
    same(*gradients(lambda one: [hvd.reducescatter(one[0], postscale_factor=2.0)], (size, 2)), rows * 2)
    uneven = torch.cat([torch.ones(1), gathered])  # rank 0 has the row that does not divide
    same(*gradients(lambda one: [hvd.reducescatter(one[0], op=hvd.Sum)], (size + 1,)), uneven * size)
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        one, two = gradients(lambda both, op=op: hvd.grouped_reducescatter(both, op=op), (size,), (size, 2))
        same(one, gathered * factor)
        same(two, rows * factor)
    alone = hvd.add_process_set([size - 1])
    if rank == size - 1:
        same(*gradients(lambda one: [hvd.reducescatter(one[0], op=hvd.Sum, process_set=alone)], (3,)),
             torch.full((3,), float(size)))  # fmt: skip
    assert hvd.remove_process_set(alone)


def check_compression():
    half, ctx = hvd.Compression.fp16.compress(torch.ones(2))
    assert half.dtype == torch.float16 and hvd.Compression.fp16.decompress(half, ctx).dtype == torch.float32
    whole, ctx = hvd.Compression.fp16.compress(torch.ones(2, dtype=torch.int64))
    assert whole.dtype == torch.int64
    same(hvd.allreduce(torch.full((2,), 3.0), compression=hvd.Compression.fp16), torch.full((2,), 3.0), torch.float32)


def check_sparse_allreduce():
    rank, size = hvd.rank(), hvd.size()
    mine = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,), check_invariants=True)
    result = hvd.sparse_allreduce_async(mine, "sparse", hvd.Average)()
    same(result.to_dense(), torch.cat([torch.full((size,), 1.0 / size), torch.tensor([2.0])]))


def check_process_sets():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.global_process_set.process_set_id == 0 and hvd.global_process_set.rank() == rank
    members = hvd.ProcessSet([size - 1, 0] if size > 2 else [0])
    assert members.size() is None and members.rank() is None and members.included() is None
    raises(ValueError, "has not been registered", hvd.allreduce, torch.ones(1), process_set=members)
    assert hvd.add_process_set(members) is members and members.ranks == sorted(members.ranks)
    last = hvd.add_process_set([size - 1])
    assert (members.process_set_id, last.process_set_id) == (1, 2) and members.size() == len(members.ranks)
    raises(ValueError, "duplicate", hvd.add_process_set, members.ranks)
    raises(ValueError, "duplicate", hvd.add_process_set, list(range(size)))
    raises(ValueError, "ranks of", hvd.add_process_set, [size])
    raises(ValueError, "integers", hvd.ProcessSet, ["a"])
    if members.included():
        top = members.ranks[-1]  # roots are ranks of the world
        same(hvd.allreduce(torch.tensor([float(rank)]), op=hvd.Sum, process_set=members), [float(sum(members.ranks))])
        same(hvd.broadcast(torch.tensor([rank]), top, process_set=members), [top])
        hvd.barrier(process_set=members)
        assert hvd.broadcast_object(rank, top, process_set=members) == top
        raises(ValueError, "invalid root rank 1", hvd.broadcast, torch.ones(1), 1, process_set=members)
    else:
        raises(ValueError, f"Rank {rank} is not a member", hvd.allreduce, torch.ones(1), process_set=members)
        raises(ValueError, "not part of", members.rank)
    assert hvd.remove_process_set(members) and not hvd.remove_process_set(members)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert hvd.remove_process_set(last)
    again = hvd.add_process_set([1])
    assert again.process_set_id == 1  # ids are reused
    assert hvd.remove_process_set(again)


def check_process_sets_are_the_same_everywhere():
    different = [0] if hvd.rank() == 0 else [1]
    error = raises(ValueError, "same sets in one order", hvd.add_process_set, different)
    assert isinstance(error, farandole.MismatchError)


def check_objects():
    rank, size = hvd.rank(), hvd.size()
    thing = {"from": rank, "list": [1, "two", None], "large": "x" * (1000 * (rank + 1))}
    assert hvd.broadcast_object(thing, root_rank=1)["from"] == 1
    assert hvd.broadcast_object(thing if rank == 0 else None, root_rank=0, name="thing")["large"] == "x" * 1000
    assert [one["from"] for one in hvd.allgather_object(thing)] == list(range(size))
    assert hvd.allgather_object(None) == [None] * size


def check_broadcast_parameters():
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    for state in hvd.allgather_object({name: value.tolist() for name, value in model.state_dict().items()}):
        assert state == {name: value.tolist() for name, value in model.state_dict().items()}
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    hvd.broadcast_parameters([torch.full((2,), float(hvd.rank()))], root_rank=0)
    raises(ValueError, "invalid params", hvd.broadcast_parameters, 3, 0)


def check_barrier_and_join():
    rank, size = hvd.rank(), hvd.size()
    hvd.barrier()
    for step in range(rank + 1):
        result = hvd.allreduce(torch.full((2,), 6.0), name=f"uneven.{step}")
        same(result, torch.full((2,), 6.0) * (size - step) / size)  # the divisor stays the full size
    assert hvd.join() in range(size)
    same(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(size)))


def check_shutdown_and_again():
    hvd.barrier()
    hvd.shutdown()
    hvd.shutdown()
    error = raises(hvd.HorovodInternalError, "initialized", hvd.allreduce, torch.ones(1))
    assert isinstance(error, farandole.NotInitializedError)
    raises(ValueError, "use hvd.init", hvd.size)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)


def sets_at_init():
    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    assert first.process_set_id == 1
    same(hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum), torch.tensor([2.0]))
    hvd.shutdown()
    assert first.process_set_id is None
    raises(ValueError, "MPI", hvd.init, comm=object())


def test_process_sets_given_to_init():
    launch(2, sets_at_init)
