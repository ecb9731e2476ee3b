"""Tensors of PyTorch on CUDA: operations by name, and torch.distributed. This build of PyTorch has no CUDA: tensors and
streams are the fake driver's (fake_devices.py). What PyTorch itself would do on a device is not tested here."""

import contextlib
import ctypes
import os
import sys
import time
import types

import fake_devices
import farandole
import farandole.torch as hvd
import pytest
import torch
import torch.distributed as dist
from farandole.torch.distributed.devices import DeviceWork
from farandole.torch.gradient_buckets import of_size
from farandole.torch.gradient_reduction import GradientReductions
from launch import checks_of, require
from limits import allowed
from test_devices import ENVIRONMENTS
from torch.distributed.distributed_c10d import AllgatherOptions

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def values(rank, count, dtype, salt=0):
    return ((torch.arange(count) * 7 + rank * 3 + salt) % 5).to(dtype)


def total(count, dtype, salt=0):
    return sum(values(rank, count, dtype, salt) for rank in range(hvd.size())).to(dtype)


def mine(count, dtype, salt=0):
    return fake_devices.Tensor(values(hvd.rank(), count, dtype, salt))


def check_init():
    hvd.init()
    fake_devices.fake_torch_cuda()


def check_sums():
    for dtype in TYPES:
        for count in (1, 1000, 70_001):
            result = hvd.allreduce(mine(count, dtype), op=hvd.Sum)
            assert isinstance(result, fake_devices.Tensor) and torch.equal(result.get(), total(count, dtype)), (
                dtype,
                count,
            )


def check_in_place_averages():
    tensor = mine(1000, torch.float32)
    assert hvd.allreduce_(tensor) is tensor
    assert torch.equal(tensor.get(), total(1000, torch.float32) / hvd.size())


def check_averages_divide_in_memory_of_host_and_device():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        numbers = torch.cat([torch.full((100,), 7, dtype=dtype), torch.arange(40, dtype=dtype)])
        quotients = numbers * hvd.size() / hvd.size()
        assert torch.equal(hvd.allreduce(numbers), quotients), dtype
        assert torch.equal(hvd.allreduce(fake_devices.Tensor(numbers)).get(), quotients), dtype


def check_gradients_of_a_step():
    for step in range(8):
        tensors = [mine(10 + 31 * i, torch.float32, i + step) for i in range(30)]
        handles = [hvd.allreduce_async_(one, name=f"gradient.{i}", op=hvd.Sum) for i, one in enumerate(tensors)]
        for i, (handle, one) in enumerate(zip(handles, tensors)):
            assert hvd.synchronize(handle) is one
            assert torch.equal(one.get(), total(10 + 31 * i, torch.float32, i + step))


def check_broadcast():
    tensor = mine(77, torch.float32)
    hvd.broadcast_(tensor, root_rank=hvd.size() - 1)
    assert torch.equal(tensor.get(), values(hvd.size() - 1, 77, torch.float32))


def check_a_group_of_tensors_needs_one_device():
    with pytest.raises(hvd.HorovodInternalError, match="same device"):
        hvd.grouped_allreduce_async([fake_devices.Tensor(torch.ones(3)), fake_devices.Tensor(torch.ones(3), device=1)])


def copy_on(stream, target, source):
    """Queues a copy of one tensor's memory to another's."""
    copy = fake_devices.driver().cuMemcpyAsync
    copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    fake_devices.with_context(
        0, lambda: copy(target.data_ptr(), source.data_ptr(), source.array.nbytes, stream.cuda_stream)
    )


class Held:
    """The device does nothing before the end of the block, where an operation can be over for the host before it is for
    the device: with NCCL."""

    def __enter__(self):
        self.holds = "FARANDOLE_NCCL_LIBRARY" in os.environ and hvd.size() > 1
        if self.holds:
            fake_devices.driver().fake_cuda_hold()

    def __exit__(self, *_):
        if self.holds:
            fake_devices.driver().fake_cuda_go_on()


def check_results_are_ordered_with_the_waiting_stream():
    """An operation is submitted on one stream and waited for on another. Later work of the second stream follows the
    operation, and the memory of the first stream is kept for it."""
    one, other = fake_devices.Stream("cuda:0"), fake_devices.Stream("cuda:0")
    for step in range(3):  # the first makes the group's communicator
        tensor, copied = mine(1000, torch.float32, step), fake_devices.Tensor(torch.zeros(1000))
        with Held() if step else contextlib.nullcontext():
            with fake_devices.on_stream(one):
                handle = hvd.allreduce_async_(tensor, name="crossing", op=hvd.Sum)
            with fake_devices.on_stream(other):
                assert hvd.synchronize(handle) is tensor
                copy_on(other, copied, tensor)
        assert torch.equal(copied.get(), total(1000, torch.float32, step)), step
        assert tensor.recorded == [other.cuda_stream]
    tensor = mine(1000, torch.float32)
    with fake_devices.on_stream(one):
        hvd.synchronize(hvd.allreduce_async_(tensor, name="staying", op=hvd.Sum))
    assert not hasattr(tensor, "recorded")


def check_ordered_calls_follow_the_current_stream():
    """PyTorch's description of its arrays names no stream."""
    stream = fake_devices.Stream("cuda:0")
    kept = []  # because to free memory waits for the device, which must not be held then
    with farandole.Communicator() as comm:
        for dtype in TYPES:
            tensor, given = fake_devices.Tensor(torch.zeros(1000, dtype=dtype)), mine(1000, dtype)
            kept += [tensor, given]
            comm.allreduce(given, out=tensor)  # the first one connects the ranks
            fake_devices.synchronize()
            fake_devices.driver().fake_cuda_hold()
            with fake_devices.on_stream(stream):
                copy_on(stream, tensor, given)
                started = comm.iallreduce(tensor, out=tensor)
            fake_devices.driver().fake_cuda_go_on()
            started.wait()
            assert torch.equal(tensor.get(), total(1000, dtype)), dtype
        gathered = comm.allgather(mine(3, torch.float32))
        assert isinstance(gathered, fake_devices.Tensor) and gathered.shape == (hvd.size(), 3)
        assert torch.equal(gathered.get(), torch.stack([values(r, 3, torch.float32) for r in range(hvd.size())]))


def check_a_bucket_waits_for_the_streams_of_all_its_gradients():
    """As with autograd, each gradient is computed on the stream of its part of the forward pass."""
    streams = [fake_devices.Stream("cuda:0") for _ in range(2)]
    parameters = [fake_devices.Tensor(torch.zeros(500)).requires_grad_() for _ in streams]
    names = {parameter: f"of_stream.{i}" for i, parameter in enumerate(parameters)}
    reductions = GradientReductions(names, hvd.Compression.none, 1, hvd.Sum, 1.0, [parameters], False,
                                    hvd.global_process_set, False)  # fmt: skip
    waits, wait_stream = [], fake_devices.Stream.wait_stream

    def noted(stream, other):
        waits.append((stream.cuda_stream, other.cuda_stream))
        wait_stream(stream, other)

    fake_devices.Stream.wait_stream = noted
    for step in range(3):
        made = [mine(500, torch.float32, i + step) for i in range(2)]
        for parameter in parameters:
            parameter.grad = fake_devices.Tensor(torch.zeros(500))
        with Held() if step else contextlib.nullcontext():
            for stream, parameter, values_ in zip(streams, parameters, made):
                with fake_devices.on_stream(stream):
                    copy_on(stream, parameter.grad, values_)
                    if reductions.is_active:
                        reductions._on_gradient(parameter)
            begun = list(waits)
            reductions.synchronize()
        if reductions.is_active:
            if step == 0:  # the first step reduces nothing in backward
                assert begun == [] and (1, streams[0].cuda_stream) in waits and (1, streams[1].cuda_stream) in waits
            else:
                assert begun == [(streams[1].cuda_stream, streams[0].cuda_stream)]
                assert waits[1:] == []  # the current stream waits for the operation, and not for the gradients' stream
            waits.clear()
            for i, parameter in enumerate(parameters):
                assert torch.equal(parameter.grad.get(), total(500, torch.float32, i + step)), (step, i)
    fake_devices.Stream.wait_stream = wait_stream


def check_buckets_on_a_device_are_larger():
    here = [torch.zeros(100_000) for _ in range(12)]  # 4.8 MB
    there = [fake_devices.Tensor(one) for one in here]
    assert [len(group) for group in of_size(here)] == [2] * 6
    assert [len(group) for group in of_size(there)] == [12]
    assert [len(group) for group in of_size(there, 1_000_000)] == [2] * 6


class Momentum:
    """An optimizer with its state on the device, except for its step counter."""

    def __init__(self, rank):
        self.param_groups = [{"params": [fake_devices.Tensor(torch.zeros(1))], "lr": 0.1}]
        self.state = {"step": torch.tensor(float(rank)), "momentum": mine(300, torch.float32)} if rank == 0 else {}

    def state_dict(self):
        return {"state": {0: self.state}, "param_groups": []}

    def load_state_dict(self, state):
        self.state = state["state"][0]


def check_optimizer_state_is_broadcast_to_devices():
    optimizer = Momentum(hvd.rank())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state["step"].is_cpu and optimizer.state["step"].item() == 0
    assert isinstance(optimizer.state["momentum"], fake_devices.Tensor)
    assert torch.equal(optimizer.state["momentum"].get(), values(0, 300, torch.float32))


def coalesced_collectives_are_one_group(asynchronous):
    """Several collectives in one call: with NCCL one group of calls."""
    size, group = hvd.size(), dist.distributed_c10d._get_default_group()
    blocking = AllgatherOptions()
    blocking.asyncOp = False
    by_nccl = size > 1 and "FARANDOLE_NCCL_LIBRARY" in os.environ
    wholes = [fake_devices.Tensor(torch.zeros(count * size)) for count in (3, 40, 700)]
    parts = [fake_devices.Tensor(torch.zeros(count)) for count in (5, 20)]
    before = fake_devices.nccl().fake_nccl_calls(b"GroupEnd") if by_nccl else 0
    if asynchronous:
        group.all_gather_single_coalesced(wholes, [mine(count, torch.float32) for count in (3, 40, 700)]).wait()
    else:
        group.all_gather_single_coalesced(wholes, [mine(count, torch.float32) for count in (3, 40, 700)], blocking)
    group.reduce_scatter_single_coalesced(parts, [mine(count * size, torch.float32) for count in (5, 20)]).wait()
    if by_nccl:
        assert fake_devices.nccl().fake_nccl_calls(b"GroupEnd") - before == 2
    for whole, count in zip(wholes, (3, 40, 700)):
        assert torch.equal(whole.get(), torch.cat([values(rank, count, torch.float32) for rank in range(size)]))
    for part, count in zip(parts, (5, 20)):
        mine_of = slice(hvd.rank() * count, (hvd.rank() + 1) * count)
        assert torch.equal(part.get(), total(count * size, torch.float32)[mine_of])


def check_torch_distributed():
    os.environ.pop("FARANDOLE_RENDEZVOUS")  # it is the other world's
    store = dist.FileStore(os.environ["TEST_STORE"], hvd.size())
    dist.init_process_group("farandole", store=store, rank=hvd.rank(), world_size=hvd.size())
    for count in (1, 5000):
        tensor = mine(count, torch.float32)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.get(), total(count, torch.float32))
        works = [
            (one, dist.all_reduce(one, async_op=True)) for one in (mine(count, torch.float32, i) for i in range(6))
        ]
        for i, (one, work) in enumerate(works):
            work.wait()
            assert torch.equal(one.get(), total(count, torch.float32, i))
            (stream,) = set(one.recorded)  # the group's own stream
            assert stream != 1 and one.recorded == works[0][0].recorded
        assert not hasattr(tensor, "recorded")  # it was used on the current stream
        dist.broadcast(tensor, src=0)
    tensor, held = mine(1000, torch.float32), Held()
    with held:
        work = dist.all_reduce(tensor, async_op=True)
        while not work._pendings[0].done():
            time.sleep(0.001)
        assert not (held.holds and work.is_completed())
        work.wait()
        assert not (held.holds and work.is_completed())
    assert torch.equal(tensor.get(), total(1000, torch.float32)) and work.is_completed() and work.is_success()
    whole = fake_devices.Tensor(torch.zeros(hvd.size() * 9))
    dist.all_gather_into_tensor(whole, mine(9, torch.float32))
    assert torch.equal(whole.get(), torch.cat([values(rank, 9, torch.float32) for rank in range(hvd.size())]))
    part = fake_devices.Tensor(torch.zeros(4))
    dist.reduce_scatter_tensor(part, mine(4 * hvd.size(), torch.float32))
    assert torch.equal(part.get(), total(4 * hvd.size(), torch.float32)[hvd.rank() * 4 : hvd.rank() * 4 + 4])
    if hvd.size() > 1:
        exchange_messages()
        messages_and_collectives_in_any_order()
        batches_are_one_group()
        other_coalesced_collectives_are_one_group()
        pools_are_registered()
        messages_are_done_on_the_device()
        a_wait_is_for_one_work(store)
    coalesced_collectives_are_one_group(asynchronous=True)
    coalesced_collectives_are_one_group(asynchronous=False)
    dist.barrier()
    dist.destroy_process_group()


def check_remaining_copies_follow_the_groups_stream():
    """The copies of a work that is waited for on another stream than its own, as in a future's callbacks."""
    stream, waiting = fake_devices.Stream("cuda:0"), fake_devices.Stream("cuda:0")
    given, between, target = (
        mine(100, torch.float32),
        fake_devices.Tensor(torch.zeros(100)),
        fake_devices.Tensor(torch.zeros(100)),
    )
    fake_devices.driver().fake_cuda_hold()
    copy_on(stream, between, given)
    pending = types.SimpleNamespace(
        wait=lambda: None, order_before=lambda now: fake_devices.Stream("cuda:0", now).wait_stream(stream)
    )
    work = DeviceWork((pending,), [target], lambda: copy_on(waiting, target, between), None, stream, (given, [between]))
    with fake_devices.on_stream(waiting):
        work.wait()
    fake_devices.driver().fake_cuda_go_on()
    assert torch.equal(target.get(), values(hvd.rank(), 100, torch.float32))
    assert given.recorded == between.recorded == [waiting.cuda_stream]


def exchange_messages():
    """Messages between devices and the host, small ones too, and one that arrives before its receive."""
    rank, other = hvd.rank(), 1 - hvd.rank()
    for count in (1, 12, 13, 5000):
        for there in (fake_devices.Tensor, torch.clone):
            given = values(rank, count, torch.float32)
            received = there(torch.zeros(count))
            sent = dist.isend(fake_devices.Tensor(given) if there is torch.clone else there(given), other)
            assert dist.irecv(received, other).wait()
            sent.wait()
            got = received.get() if isinstance(received, fake_devices.Tensor) else received
            assert torch.equal(got, values(other, count, torch.float32)), (count, there)
            got = fake_devices.Tensor(torch.zeros(count))
            sent = dist.isend(given, other)
            assert dist.irecv(got, other).wait()
            sent.wait()
            assert torch.equal(got.get(), values(other, count, torch.float32)), (count, there)
    works = [dist.isend(mine(700, torch.float32, tag), other, tag=tag) for tag in (1, 2)]
    for tag in (2, 1):
        late = fake_devices.Tensor(torch.zeros(700))
        assert dist.irecv(late, other, tag=tag).wait()
        assert torch.equal(late.get(), values(other, 700, torch.float32, tag))
    for work in works:
        work.wait()


def messages_and_collectives_in_any_order():
    """Rank 0 starts a message before a collective, and rank 1 receives it behind the collective. With NCCL the message
    is on rank 0's device before the collective is."""
    other, summed = 1 - hvd.rank(), mine(600, torch.float32)
    moved = mine(600, torch.float32, 1) if hvd.rank() == 0 else fake_devices.Tensor(torch.zeros(600))
    dist.all_reduce(mine(600, torch.float32), async_op=True).wait()  # connects
    if hvd.rank() == 0:
        sends = nccl_calls(b"Send")
        message = dist.isend(moved, other)
        while "FARANDOLE_NCCL_LIBRARY" in os.environ and nccl_calls(b"Send") == sends:
            time.sleep(0.001)
        time.sleep(0.05)  # what follows the call
    reduction = dist.all_reduce(summed, async_op=True)
    if hvd.rank() == 1:
        message = dist.irecv(moved, other)
    message.wait()
    reduction.wait()
    assert torch.equal(summed.get(), total(600, torch.float32))
    assert torch.equal(moved.get(), values(0, 600, torch.float32, 1))


def other_coalesced_collectives_are_one_group():
    """Collectives within torch's coalescing manager for which torch has no call of its own."""
    size, rank = hvd.size(), hvd.rank()
    group = dist.distributed_c10d._get_default_group()
    before = nccl_calls(b"GroupEnd")
    for asynchronous in (True, False):
        copied, summed = [mine(30, torch.float32, root) for root in range(size)], mine(20, torch.float32)
        with dist.distributed_c10d._coalescing_manager(group, torch.device("cuda", 0), asynchronous) as manager:
            for root in range(size):
                dist.broadcast(copied[root], src=root, async_op=asynchronous)
            dist.reduce(summed, dst=0, async_op=asynchronous)
        if asynchronous:
            manager.wait()
        for root, one in enumerate(copied):
            assert torch.equal(one.get(), values(root, 30, torch.float32, root))
        if rank == 0:
            assert torch.equal(summed.get(), total(20, torch.float32))
    if "FARANDOLE_NCCL_LIBRARY" in os.environ:
        assert nccl_calls(b"GroupEnd") - before == 2


def nccl_calls(function):
    by_nccl = "FARANDOLE_NCCL_LIBRARY" in os.environ
    return fake_devices.nccl().fake_nccl_calls(function) if by_nccl else 0


def batches_are_one_group():
    """torch.distributed.batch_isend_irecv: NCCL gets the messages of both directions as one group."""
    other = 1 - hvd.rank()
    before, pinned = {}, fake_devices.driver().fake_cuda_calls(b"cuMemHostAlloc")
    for step in range(4):
        given = [mine(count, torch.float32, step) for count in (1, 5000)]
        got = [fake_devices.Tensor(torch.zeros(count)) for count in (1, 5000)]
        operations = [dist.P2POp(dist.isend, one, other) for one in given]
        for work in dist.batch_isend_irecv([*operations, *(dist.P2POp(dist.irecv, one, other) for one in got)]):
            work.wait()
        for one in got:
            assert torch.equal(one.get(), values(other, one.numel(), torch.float32, step))
        if step == 0:  # the two ranks have joined
            before = {name: nccl_calls(name) for name in (b"GroupEnd", b"Send", b"Recv")}
    if "FARANDOLE_NCCL_LIBRARY" in os.environ:
        assert {name: nccl_calls(name) - count for name, count in before.items()} == {
            b"GroupEnd": 3, b"Send": 6, b"Recv": 6}  # fmt: skip
        assert fake_devices.driver().fake_cuda_calls(b"cuMemHostAlloc") == pinned


class Pool:
    """torch.cuda.MemPool with one segment."""

    id = (0, 7)

    def __init__(self, tensor):
        self.tensor = tensor

    def snapshot(self):
        return [{"device": 0, "address": self.tensor.data_ptr(), "total_size": self.tensor.nbytes}]


def pools_are_registered():
    group = dist.distributed_c10d._get_default_group()
    backend, tensor = group._get_backend(torch.device("cuda")), mine(5000, torch.float32)
    pool, made = Pool(tensor), nccl_calls(b"CommRegister")
    backend.register_mem_pool(pool)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.get(), total(5000, torch.float32))
    if "FARANDOLE_NCCL_LIBRARY" in os.environ:
        assert nccl_calls(b"CommRegister") == made + 1
    with pytest.raises(farandole.InvalidArgumentError, match="registered already"):
        backend.register_mem_pool(pool)
    dropped = nccl_calls(b"CommDeregister")
    backend.deregister_mem_pool(pool)
    if "FARANDOLE_NCCL_LIBRARY" in os.environ:
        assert nccl_calls(b"CommDeregister") == dropped + 1
    with pytest.raises(farandole.InvalidArgumentError, match="not registered"):
        backend.deregister_mem_pool(pool)
    with pytest.raises(farandole.UnsupportedError, match="allocate together"):
        backend.register_mem_pool(pool, symm=True)


def messages_are_done_on_the_device():
    """A work of a message is complete when the device has finished that message, not what follows on the stream."""
    other = 1 - hvd.rank()
    # A call drops the tensors of those before it, and to free memory waits for the device, which must not be held then.
    kept = [mine(900, torch.float32), mine(900, torch.float32)]
    for work in [dist.isend(kept[0], other), dist.irecv(kept[1], other)]:
        work.wait()
    kept[1].get()
    for by in (dist.isend, dist.irecv) if hvd.rank() == 0 else (dist.irecv, dist.isend):
        tensor, held = mine(900, torch.float32), Held()
        kept.append(tensor)
        with held:
            work = by(tensor, other)
            while not work._pendings[0].done():
                time.sleep(0.001)
            assert not (held.holds and work.is_completed())
        work.wait()
        tensor.get()
        assert work.is_completed() and work.is_success()


def a_wait_is_for_one_work(store):
    """Rank 1 starts the second collective only when rank 0's device is through with what follows the first one."""
    tensors = [mine(800, torch.float32, i) for i in range(2)]
    first = dist.all_reduce(tensors[0], async_op=True)
    if hvd.rank() == 0:
        second = dist.all_reduce(tensors[1], async_op=True)
        time.sleep(0.05)  # for the second one to reach the group's stream
    first.wait()
    end, answers, last = ctypes.c_void_p(), [1], time.monotonic() + allowed(10)
    driver = fake_devices.driver()
    fake_devices.with_context(0, lambda: driver.cuEventCreate(ctypes.byref(end), 2))
    fake_devices.with_context(0, lambda: driver.cuEventRecord(end, ctypes.c_void_p(1)))  # of the current stream
    while answers[-1] and time.monotonic() < last:
        time.sleep(0.001)
        fake_devices.with_context(0, lambda: answers.append(driver.cuEventQuery(end)) or 0)
    if hvd.rank() == 0:
        store.set("through", "yes")
    else:
        store.wait(["through"])
        second = dist.all_reduce(tensors[1], async_op=True)
    second.wait()
    for i, tensor in enumerate(tensors):
        assert torch.equal(tensor.get(), total(800, torch.float32, i))
    assert not answers[-1], "the current stream waits for a later collective of the group's stream"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("by", ENVIRONMENTS)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_torch_on_devices(check, size, by, store):
    require(sys.modules[__name__], size, check, ENVIRONMENTS[by] | {"TEST_STORE": str(store / f"{by}{size}")})
