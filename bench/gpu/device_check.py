"""Checks operations of every kind on tensors of a device: those of PyTorch, of torch.distributed, and arrays of CuPy.

    python device_check.py [--ranks N] [--device cpu] [--only WORD]

Runs a job for each way of moving the bytes: NCCL with each way of making its calls, through the host's memory, and
farandole's own schedules over NCCL. Inputs are small integers, whose sums are exact, and results are compared with ==.
The last jobs lose a rank, which is killed or stopped. --only: jobs and checks whose names contain the word. --device
cpu shows that the script works on a machine without GPU.

The exit code is 3 without a GPU, and 4 if a check fails or a job does not end.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
import traceback

from ddp_bench import NONE, WRONG, share_devices, what_is_missing

DEADLINE_S = 90
JOBS = {
    "nccl, auto": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl"},
    "nccl, deferred": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "FARANDOLE_NCCL_CALLS": "deferred"},
    "nccl, direct": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "FARANDOLE_NCCL_CALLS": "direct"},
    "nccl, one hardware queue": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "staged": {"FARANDOLE_DEVICE_COLLECTIVES": "staged"},
    "ring over nccl": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "FARANDOLE_ALGORITHM": "ring"},
    "killed, auto": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl"},
    "killed, deferred": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "FARANDOLE_NCCL_CALLS": "deferred"},
    "killed, direct": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "FARANDOLE_NCCL_CALLS": "direct"},
    "killed before a first call": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl"},
    "stopped": {"FARANDOLE_DEVICE_COLLECTIVES": "nccl", "FARANDOLE_SUSPECT_AFTER_S": "2"},
}


class Place:
    """This rank, its device, and the job's modules."""

    def __init__(self, rank, options, folder):
        import farandole
        import farandole.torch as hvd
        import torch

        self.fdl, self.hvd, self.torch = farandole, hvd, torch
        self.rank, self.size, self.folder = rank, options.ranks, folder
        torch.set_num_threads(1)
        self.is_cuda = options.device == "cuda"
        self.device = torch.device("cpu")
        if self.is_cuda:
            self.device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)

    def is_last(self):
        return self.rank == self.size - 1

    def values(self, rank, count, dtype, salt=0):
        return ((self.torch.arange(count, device=self.device) * 7 + rank * 3 + salt) % 5).to(dtype)

    def mine(self, count, dtype=None, salt=0):
        return self.values(self.rank, count, dtype or self.torch.float32, salt)

    def total(self, count, dtype=None, salt=0):
        dtype = dtype or self.torch.float32
        return sum(self.values(rank, count, self.torch.int64, salt) for rank in range(self.size)).to(dtype)

    def same(self, given, expected, what=""):
        assert given.device == self.device, f"{what}: the result is on {given.device}"
        assert given.dtype == expected.dtype and given.shape == expected.shape, f"{what}: {given.dtype} {given.shape}"
        differs = (given != expected).nonzero()
        if len(differs):
            at = tuple(differs[0].tolist())
            raise AssertionError(f"{what}: {len(differs)} differ, element {at} is {given[at]}, not {expected[at]}")

    def types(self):
        torch = self.torch
        return (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)


# ---- Operations by name


def check_sums_of_all_types_and_sizes(here):
    for dtype in here.types():
        for count in (1, 3, 1000, 70_001, 1 << 20):
            here.same(here.hvd.allreduce(here.mine(count, dtype), op=here.hvd.Sum), here.total(count, dtype), dtype)


def check_other_reductions(here):
    torch, hvd = here.torch, here.hvd
    stacked = torch.stack([here.values(rank, 501, torch.int64, 1) for rank in range(here.size)])
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for op, expected in (
            (hvd.Min, stacked.amin(0)), (hvd.Max, stacked.amax(0)), (hvd.Product, stacked.prod(0)),
        ):  # fmt: skip
            here.same(hvd.allreduce(here.mine(501, dtype, 1), op=op), expected.to(dtype), (op, dtype))


def check_averages(here):
    torch = here.torch
    for dtype in here.types():
        # A multiple of the number of ranks: the average is exact.
        tensor = here.mine(333, dtype) * here.size
        here.same(here.hvd.allreduce(tensor, op=here.hvd.Average), here.total(333, dtype), dtype)
    tensor = here.mine(100)
    here.same(here.hvd.allreduce(tensor, op=here.hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
              here.total(100) * 2, "scaled")  # fmt: skip
    here.same(here.hvd.allreduce(tensor, op=here.hvd.Sum, compression=here.hvd.Compression.fp16),
              here.total(100), "compressed")  # fmt: skip
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):  # divided, and rounded once
        here.same(here.hvd.allreduce(here.mine(100, dtype), op=here.hvd.Average),
                  here.total(100, dtype) / here.size, ("divided", dtype))  # fmt: skip


def check_steps_of_gradients(here):
    hvd = here.hvd
    for step in range(12):
        tensors = [here.mine(10 + 337 * i, salt=i + step) for i in range(60)]
        handles = [hvd.allreduce_async_(one, name=f"gradient.{i}", op=hvd.Sum) for i, one in enumerate(tensors)]
        for i, (handle, one) in enumerate(zip(handles, tensors)):
            assert hvd.synchronize(handle) is one
            here.same(one, here.total(10 + 337 * i, salt=i + step), (step, i))


def check_groups_of_tensors(here):
    hvd, torch = here.hvd, here.torch
    tensors = [here.mine(50 + i, dtype, i) for i, dtype in enumerate((torch.float32, torch.float32, torch.float32))]
    for i, one in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum)):
        here.same(one, here.total(50 + i, salt=i), i)


def check_other_collectives(here):
    hvd, torch, rank, size = here.hvd, here.torch, here.rank, here.size
    for dtype in (torch.float32, torch.int32, torch.bfloat16):
        gathered = hvd.allgather(here.mine(3 * (rank + 1), dtype).view(rank + 1, 3))
        here.same(gathered, torch.cat([here.values(r, 3 * (r + 1), dtype).view(r + 1, 3) for r in range(size)]), dtype)
        for root in range(size):
            here.same(hvd.broadcast(here.mine(1234, dtype, root), root), here.values(root, 1234, dtype, root), root)
        rows = [one + 1 for one in range(size)]
        result, received = hvd.alltoall(
            here.mine(2 * sum(rows), dtype).view(-1, 2), torch.tensor(rows, dtype=torch.int32)
        )
        assert received.tolist() == [rank + 1] * size
        parts = [here.values(r, 2 * sum(rows), dtype).view(-1, 2)[sum(rows[:rank]) : sum(rows[: rank + 1])]
                 for r in range(size)]  # fmt: skip
        here.same(result, torch.cat(parts), dtype)
        result = hvd.reducescatter(here.mine(4 * (2 * size + 1), dtype).view(-1, 4), op=hvd.Sum)
        first = rank * 2 + min(rank, 1)
        here.same(result, here.total(4 * (2 * size + 1), dtype).view(-1, 4)[first : first + 2 + (rank == 0)], dtype)


def check_many_kinds_at_once(here):
    """Operations that become ready together and cannot share a bucket."""
    hvd, torch = here.hvd, here.torch
    for step in range(10):
        started = [(hvd.allreduce_async(here.mine(1000 + i, dtype, step), name=f"mixed.{i}", op=hvd.Sum),
                    here.total(1000 + i, dtype, step)) for i, dtype in enumerate(here.types())]  # fmt: skip
        started.append((hvd.allgather_async(here.mine(7, salt=step), name="mixed.gather"),
                        torch.cat([here.values(r, 7, torch.float32, step) for r in range(here.size)])))  # fmt: skip
        started.append((hvd.broadcast_async(here.mine(9, salt=step), 0, name="mixed.broadcast"),
                        here.values(0, 9, torch.float32, step)))  # fmt: skip
        for i, (handle, expected) in enumerate(started):
            here.same(hvd.synchronize(handle), expected, (step, i))


def check_an_empty_tensor(here):
    assert here.hvd.allreduce(here.torch.zeros(0, device=here.device), op=here.hvd.Sum).numel() == 0


def check_a_mismatch_is_named(here):
    if here.size == 1:
        return
    try:
        here.hvd.allreduce(here.mine(5 + here.rank), name="unequal", op=here.hvd.Sum)
    except here.hvd.HorovodInternalError as error:
        assert "unequal" in str(error), error
    else:
        raise AssertionError("tensors of unequal shapes were summed")


def check_operations_are_ordered_with_streams(here):
    """A long computation precedes an operation on its stream; the result is used on another one."""
    if not here.is_cuda:
        return
    torch, hvd = here.torch, here.hvd
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    for step in range(5):
        with torch.cuda.stream(one):
            tensor = here.mine(100_000, salt=step)
            square = torch.zeros(2048, 2048, device=here.device)
            for _ in range(20):
                square = square @ square
            tensor += square[0, 0]
            handle = hvd.allreduce_async_(tensor, name="crossing", op=hvd.Sum)
        with torch.cuda.stream(other):
            copied = hvd.synchronize(handle).clone()
            tensor.fill_(-1)
        other.synchronize()
        here.same(copied, here.total(100_000, salt=step), step)


def check_memory_is_returned(here):
    """Results and scratch memory of 60 operations each do not add up."""
    if not here.is_cuda:
        return
    torch, used = here.torch, []
    for _turn in range(4):
        for step in range(60):
            here.hvd.allgather(here.mine(100_000 + step), name="returned")
            here.hvd.allreduce(here.mine(100_000 + step), name="returned too", op=here.hvd.Sum)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        here.hvd.barrier()
        free, all_of_it = torch.cuda.mem_get_info()
        used.append(all_of_it - free)
    # The ranks share a device, and each one's allocator keeps some: less than the 96 MB that one turn's results have.
    assert used[-1] - used[1] < 32 << 20, used


def check_process_sets_take_turns(here):
    """Sets that share devices launch in one order, whatever the order of submissions is. Prints what a turn costs."""
    hvd, rank, size = here.hvd, here.rank, here.size
    if size == 1:
        return

    def us_of_a_sum(name):
        tensor = here.mine(2)
        for _ in range(50):
            hvd.allreduce_(tensor, name=name, op=hvd.Max)
        begin = time.monotonic()
        for _ in range(500):
            hvd.allreduce_(tensor, name=name, op=hvd.Max)
        return (time.monotonic() - begin) / 500 * 1e6

    alone_us = us_of_a_sum("a sum without turns")
    # With three ranks each two sets share two of them; with two ranks the second set is a rank alone.
    members = [[*range(size)], [*range(size - 1)], *([[*range(1, size)], [0, *range(2, size)]] if size > 2 else [])]
    sets = [hvd.global_process_set, *(hvd.add_process_set(one) for one in members[1:])]
    mine = [i for i, one in enumerate(members) if rank in one]
    for step in range(30):
        handles = []
        for i in mine if (rank + step) % 2 else mine[::-1]:
            tensor = here.mine(40_000 + 1000 * i, salt=step + i)
            handles.append((i, hvd.allreduce_async_(tensor, name=f"set.{i}", op=hvd.Sum, process_set=sets[i])))
        for i, handle in handles:
            expected = sum(here.values(one, 40_000 + 1000 * i, here.torch.int64, step + i) for one in members[i])
            here.same(hvd.synchronize(handle), expected.to(here.torch.float32), (step, i))
    hvd.barrier()
    turns_us = us_of_a_sum("a sum with turns")
    if rank == 0:
        print(f"  a sum of 8 bytes by name takes {alone_us:.1f} us, with turns {turns_us:.1f} us")
    hvd.barrier()
    for one in sets[1:]:
        hvd.remove_process_set(one)


# ---- Ordered calls and arrays


def check_ordered_calls(here):
    torch = here.torch
    with here.fdl.Communicator() as comm:
        for count in (1, 5000, 1 << 20):
            result = torch.empty(count, device=here.device)
            comm.allreduce(here.mine(count), out=result)
            here.same(result, here.total(count), count)
        tensor = here.mine(77, torch.int32)
        comm.broadcast(tensor, root=here.size - 1)
        here.same(tensor, here.values(here.size - 1, 77, torch.int32), "broadcast")
        if here.size > 1:
            after, before = (here.rank + 1) % here.size, (here.rank - 1) % here.size
            for count in (1, 30_000):
                target = torch.zeros(count, device=here.device)
                received, sent = comm.irecv(target, before), comm.isend(here.mine(count), after)
                received.wait()
                sent.wait()
                here.same(target, here.values(before, count, torch.float32), count)


def check_communicators_come_and_go(here):
    torch = here.torch
    for turn in range(5):
        with here.fdl.Communicator() as comm:
            result = torch.empty(1000, device=here.device)
            comm.allreduce(here.mine(1000, salt=turn), out=result)
            here.same(result, here.total(1000, salt=turn), turn)


def check_arrays_of_cupy(here):
    if not here.is_cuda:
        return
    try:
        import cupy
    except ImportError as error:
        print(f"  CuPy is left out: {error}")
        return
    with cupy.cuda.Device(here.device.index):
        for dtype in ("float32", "float64", "int32", "uint8", "float16", "int64"):
            for count in (1, 1000, 300_001):
                given = cupy.asarray(here.mine(count).cpu().numpy().astype(dtype))
                result = here.fdl.allreduce(given)
                assert isinstance(result, cupy.ndarray) and result.dtype == dtype
                assert (result.get() == here.total(count).cpu().numpy().astype(dtype)).all(), (dtype, count)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            given = cupy.asarray(here.mine(50_000).cpu().numpy())
            result = here.fdl.allreduce(given * 2, name="on a stream of CuPy") + 1
        assert (result.get() == 2 * here.total(50_000).cpu().numpy() + 1).all()


# ---- torch.distributed


def group_of_torch(here):
    """The module torch.distributed, whose default group is made at the first call."""
    import torch.distributed as dist

    if not dist.is_initialized():
        for name in ("FARANDOLE_RENDEZVOUS", "FARANDOLE_JOB_KEY"):  # they are the other world's
            os.environ.pop(name, None)
        dist.init_process_group(
            "farandole", init_method=f"file://{here.folder}/store", rank=here.rank, world_size=here.size
        )
    return dist


def check_torch_distributed(here):
    dist, torch, rank, size = group_of_torch(here), here.torch, here.rank, here.size
    for count in (1, 5000, 1 << 20):
        tensor = here.mine(count)
        dist.all_reduce(tensor)
        here.same(tensor, here.total(count), "all_reduce")
        tensors = [here.mine(count, salt=i) for i in range(6)]
        for i, (one, work) in enumerate([(one, dist.all_reduce(one, async_op=True)) for one in tensors]):
            work.wait()
            here.same(one, here.total(count, salt=i), "async")
    whole, part = torch.zeros(size * 9, device=here.device), torch.zeros(4, device=here.device)
    dist.all_gather_into_tensor(whole, here.mine(9))
    here.same(whole, torch.cat([here.values(r, 9, torch.float32) for r in range(size)]), "all_gather")
    dist.reduce_scatter_tensor(part, here.mine(4 * size))
    here.same(part, here.total(4 * size)[rank * 4 : rank * 4 + 4], "reduce_scatter")
    exchanged = torch.zeros(3 * size, device=here.device)
    dist.all_to_all_single(exchanged, here.mine(3 * size))
    here.same(exchanged, torch.cat([here.values(r, 3 * size, torch.float32)[3 * rank : 3 * rank + 3]
                                    for r in range(size)]), "all_to_all")  # fmt: skip
    for root in range(size):
        tensor = here.mine(100, salt=root)
        dist.broadcast(tensor, src=root)
        here.same(tensor, here.values(root, 100, torch.float32, root), "broadcast")
        tensor = here.mine(100)
        dist.reduce(tensor, dst=root)
        if rank == root:
            here.same(tensor, here.total(100), "reduce")
    dist.barrier()


def check_torch_distributed_messages(here):
    dist, torch, rank, size = group_of_torch(here), here.torch, here.rank, here.size
    if size == 1:
        return
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(5):
        for count in (1, 12, 13, 5000, 1 << 20):
            got = torch.zeros(count, device=here.device)
            sent = dist.isend(here.mine(count, salt=step), after)
            assert dist.irecv(got, before).wait()
            sent.wait()
            here.same(got, here.values(before, count, torch.float32, step), "message")
        given = [here.mine(count, salt=step) for count in (1, 5000)]
        got = [torch.zeros(count, device=here.device) for count in (1, 5000)]
        works = dist.batch_isend_irecv([*(dist.P2POp(dist.isend, one, after) for one in given),
                                        *(dist.P2POp(dist.irecv, one, before) for one in got)])  # fmt: skip
        for work in works:
            work.wait()
        for one in got:
            here.same(one, here.values(before, one.numel(), torch.float32, step), "batch")
    # From a device into memory of the host.
    host = torch.zeros(700)
    sent = dist.isend(here.mine(700), after)
    assert dist.irecv(host, before).wait()
    sent.wait()
    assert torch.equal(host, here.values(before, 700, torch.float32).cpu())


def check_torch_distributed_messages_with_all(here):
    """Each rank has messages with all others in flight, which it starts in an order of its own."""
    dist = group_of_torch(here)
    others = [(here.rank + 1 + i) % here.size for i in range(here.size - 1)]
    for step in range(20):
        got = {other: here.torch.zeros(20_000, device=here.device) for other in others}
        operations = [dist.P2POp(dist.irecv, got[other], other) for other in others]
        operations += [dist.P2POp(dist.isend, here.mine(20_000, salt=step + other), other) for other in others]
        works = dist.batch_isend_irecv(operations[::-1] if step % 2 else operations) if others else []
        for work in works:
            work.wait()
        for other in others:
            here.same(got[other], here.values(other, 20_000, here.torch.float32, step + here.rank), (step, other))


def check_torch_distributed_two_groups(here):
    """Collectives of two groups in flight at once."""
    dist = group_of_torch(here)
    other = dist.new_group(backend="farandole")
    for step in range(20):
        one, two = here.mine(50_000, salt=step), here.mine(60_000, salt=step + 1)
        works = [dist.all_reduce(one, async_op=True), dist.all_reduce(two, group=other, async_op=True)]
        for work in works:
            work.wait()
        here.same(one, here.total(50_000, salt=step), "first group")
        here.same(two, here.total(60_000, salt=step + 1), "second group")


def check_torch_distributed_data_parallel(here):
    """The gradients are exact averages."""
    group_of_torch(here)
    torch = here.torch
    index = [here.device.index] if here.is_cuda else None
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(64, 32, bias=False, device=here.device), device_ids=index
    )
    for step in range(3):
        model.zero_grad()
        model(torch.full((2, 64), float(here.size * (here.rank + step)), device=here.device)).sum().backward()
        expected = 2.0 * sum(rank + step for rank in range(here.size))
        assert bool((model.module.weight.grad == expected).all()), f"DDP, step {step}"


def check_torch_distributed_fully_sharded(here):
    """FSDP2: gradients that are exact averages."""
    dist, torch = group_of_torch(here), here.torch
    if here.size == 1 or not here.is_cuda:
        return
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False, device=here.device) for _ in range(2)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    mesh = dist.init_device_mesh("cuda", (here.size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for step in range(3):
        model.zero_grad()
        model(torch.full((2, 64), float(here.size * (here.rank + step + 1)), device=here.device)).sum().backward()
        # The gradient of the last layer: its input is 64 times the batch's value, in two rows.
        expected = 2.0 * 64 * sum(rank + step + 1 for rank in range(here.size))
        gradient = model[1].weight.grad.full_tensor()
        assert bool((gradient == expected).all()), f"FSDP2, step {step}: {gradient[0, 0]}, not {expected}"


# ---- Memory that the ranks share


def check_symmetric_memory(here):
    """Sums and averages of tensors in memory of NCCL. The last check, because an error of NCCL ends the world."""
    hvd, torch = here.hvd, here.torch
    for op, factor in ((hvd.Sum, 1), (hvd.Average, here.size)):
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32):
            for count in (1, 1000, 1 << 18, 1 << 22):
                tensor = hvd.empty(count, dtype=dtype, device=here.device, process_set=hvd.global_process_set)
                tensor.copy_(here.mine(count, dtype) * factor)
                hvd.allreduce_(tensor, name=f"symmetric.{op}.{dtype}.{count}", op=op)
                here.same(tensor, here.total(count, dtype), (op, dtype, count))


# ---- Lost ranks


class Calls:
    """Calls of this rank. Each may fail, because a rank is lost."""

    def __init__(self, here):
        self.here = here
        self.begin = time.monotonic()

    def make(self, call):
        """Waits for the device too, where the loss may be noticed."""
        self.begin = time.monotonic()
        call()
        if self.here.is_cuda:
            self.here.torch.cuda.synchronize()

    def waited_s(self):
        return time.monotonic() - self.begin


def sum_in_a_loop(here):
    """One step of the loops in which a rank is lost."""
    tensor = here.mine(500_000)
    return lambda: here.hvd.allreduce_(tensor, name="loop", op=here.hvd.Max)


def lose_one_between_sums(here, calls):
    """The last rank is killed between two sums of a loop."""
    step = sum_in_a_loop(here)
    for _ in range(20):
        calls.make(step)
    if here.is_last():
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(1_000_000):
        calls.make(step)


def lose_one_before_a_first_call(here, calls):
    """The last rank is killed before its first call of a kind, for which NCCL connects the ranks."""
    comm = here.fdl.Communicator()
    calls.make(lambda: comm.allreduce(here.mine(2), out=here.mine(2)))
    if here.is_last():
        time.sleep(1)  # the others wait for it by then
        os.kill(os.getpid(), signal.SIGKILL)
    count = here.size << 18
    calls.make(lambda: comm.alltoall(here.mine(count), out=here.mine(count)))


def stop_one_between_sums(here, calls):
    """The last rank stops for some seconds between two sums of a loop, and all go on."""
    step = sum_in_a_loop(here)
    for number in range(40):
        if here.is_last() and number == 20:
            wake_up_later()
            os.kill(os.getpid(), signal.SIGSTOP)
        calls.make(step)
    print(f"ok      rank {here.rank} went on after the stop")


# What happens to the last rank, by the first words of a job's name. Only after a stop does the job go on.
LOSSES = {
    "killed": lose_one_between_sums,
    "killed before a first call": lose_one_before_a_first_call,
    "stopped": stop_one_between_sums,
}


def lose_a_rank(here, by):
    """The others get an error that names the lost rank, in time."""
    calls = Calls(here)
    try:
        LOSSES[by](here, calls)
    except (here.fdl.Error, here.hvd.HorovodInternalError) as error:
        expect_the_lost_rank(here, error, calls.waited_s())
    else:
        assert by == "stopped", "no rank was lost"


def expect_the_lost_rank(here, error, waited_s):
    assert f"rank {here.size - 1}" in str(error), error
    assert waited_s < 20, f"the error came after {waited_s:.1f} s"
    print(f"ok      rank {here.rank} was told after {waited_s:.2f} s: {error}")
    if here.is_cuda:  # the device can still be used
        assert float(here.torch.ones(10, device=here.device).sum()) == 10


def wake_up_later():
    child = os.fork()
    if child == 0:
        time.sleep(6)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)


# ---- Jobs


def rank_main(rank, job, options, folder, key):
    os.environ.update(FARANDOLE_RANK=str(rank), FARANDOLE_SIZE=str(options.ranks), FARANDOLE_JOB_KEY=key,
                      FARANDOLE_RENDEZVOUS=f"file://{folder}/rendezvous", **JOBS[job])  # fmt: skip
    os.environ.setdefault("NCCL_DEBUG", "WARN")  # an error of NCCL explains itself
    if options.ranks == 1:
        os.environ.pop("FARANDOLE_DEVICE_COLLECTIVES", None)
    here = Place(rank, options, folder)
    here.hvd.init()
    if job.startswith(("killed", "stopped")):
        lose_a_rank(here, job.partition(",")[0])
        # A world that has failed is not shut down by agreement.
        if job == "stopped":
            here.hvd.shutdown()
        os._exit(0)
    failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_") or not (options.only in name or options.only in job):
            continue
        try:
            begin = time.monotonic()
            check(here)
            if rank == 0:
                print(f"ok      {name[6:].replace('_', ' ')} ({time.monotonic() - begin:.2f} s)")
        except Exception:
            failed += 1
            print(f"FAILED  {name[6:].replace('_', ' ')}, rank {rank}\n{traceback.format_exc()}")
        sys.stdout.flush()
    if failed == 0:
        if here.torch.distributed.is_initialized():
            here.torch.distributed.destroy_process_group()
        here.hvd.shutdown()
    os._exit(WRONG if failed else 0)


def run_job(job, options):
    """Whether all ranks passed. Ranks that still run after the deadline are killed."""
    import torch.multiprocessing as processes

    print(f"-- {job}, {options.ranks} rank{'s' if options.ranks > 1 else ''} on {options.device}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        context, key = processes.get_context("spawn"), secrets.token_hex(16)
        ranks = [context.Process(target=rank_main, args=(rank, job, options, folder, key))
                 for rank in range(options.ranks)]  # fmt: skip
        for process in ranks:
            process.start()
        passed = True
        for rank, process in enumerate(ranks):
            process.join(max(0.0, begin + DEADLINE_S - time.monotonic()))
            lost = job.startswith("killed") and rank == options.ranks - 1
            if process.exitcode is None:
                print(f"FAILED  rank {rank} still ran after {DEADLINE_S} s", flush=True)
            passed &= process.exitcode == (-signal.SIGKILL if lost else 0)
        for process in ranks:
            process.kill()
            process.join()
    print(f"{'passed' if passed else 'FAILED'}: {job} ({time.monotonic() - begin:.1f} s)", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="", metavar="WORD")
    options = parser.parse_args()
    options.without_peer = True
    missing = what_is_missing(options)
    if missing:
        print(f"device_check: there is nothing to check: {missing}", file=sys.stderr)
        return NONE
    import torch

    if options.device == "cuda" and options.ranks > torch.cuda.device_count():
        share_devices(options)
    failed = 0
    chooses_checks = any(options.only in name for name in globals() if name.startswith("check_"))
    for job in JOBS:
        loses = job.startswith(("killed", "stopped"))
        if options.ranks == 1 and (loses or job == "ring over nccl"):
            continue
        if options.only not in job and (loses or not chooses_checks):
            continue
        failed += not run_job(job, options)
    return WRONG if failed else 0


if __name__ == "__main__":
    sys.exit(main())
