"""Tensors on devices: arrays like CuPy's, through the host's memory and by NCCL, on fakes for both. Data are
small integers: sums are exact."""

import ctypes
import os
import signal
import sys
import time

import fake_devices
import farandole as fdl
import numpy as np
import pytest
from launch import checks_of, launch, require

DTYPES = ("float32", "float64", "int32", "uint8", "float16", "int64")


def values(rank, shape, dtype, salt=0):
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + rank * 3 + salt) % 5).astype(dtype).reshape(shape)


def total(shape, dtype, salt=0):
    return sum(values(rank, shape, dtype, salt) for rank in range(fdl.size())).astype(dtype)


def mine(shape, dtype, salt=0):
    return fake_devices.array(values(fdl.rank(), shape, dtype, salt))


def check_init():
    fdl.init()


def check_sums_of_all_sizes_and_types():
    for dtype in DTYPES:
        for count in (1, 3, 1000, 300_001):
            result = fdl.allreduce(mine((count,), dtype))
            assert isinstance(result, fake_devices.Array) and result.dtype == dtype
            assert (result.get() == total((count,), dtype)).all(), (dtype, count)


def check_in_place_and_scaled():
    tensor = mine((2, 500), "float32")
    same = fdl.allreduce(tensor, fdl.AVERAGE, out=tensor, prescale=2.0, postscale=3.0)
    assert same is tensor
    assert np.allclose(tensor.get(), total((2, 500), "float32") * 6 / fdl.size(), rtol=1e-6)


def check_averages_divide():
    """The product with a rounded 1/ranks would often be a neighbour of the quotient: of three sevens, 7.0000005."""
    numbers = np.concatenate([np.full(100, 7), np.arange(100)])
    for dtype in ("float32", "float64", "float16"):
        expected = (numbers * fdl.size()).astype(dtype) / np.array(fdl.size(), dtype)
        with fdl.Communicator() as comm:
            ordered = comm.allreduce(fake_devices.array(numbers.astype(dtype)), op=fdl.AVERAGE)
        named = fdl.allreduce(fake_devices.array(numbers.astype(dtype)), fdl.AVERAGE)
        pair = fdl.grouped_allreduce([fake_devices.array(numbers.astype(dtype)) for _ in range(2)], fdl.AVERAGE)
        for result in (ordered, named, *pair):
            assert (result.get() == expected).all(), dtype


def check_simultaneous_operations_are_fused():
    for step in range(12):
        tensors = [mine((10 + 37 * i,), "float32", i + step) for i in range(40)]
        handles = [fdl.allreduce_async(one, name=f"grad{i}", out=one) for i, one in enumerate(tensors)]
        for i, (handle, one) in enumerate(zip(handles, tensors)):
            handle.wait()
            assert (one.get() == total((10 + 37 * i,), "float32", i + step)).all(), (step, i)
    counters = fdl.metrics()
    assert counters["buckets"] < counters["named_operations"]


def check_fusion_buffers_are_registered_with_nccl():
    if "FARANDOLE_NCCL_LIBRARY" not in os.environ or fdl.size() == 1:
        return
    tensors = [mine((300_000,), "float32", i) for i in range(2)]  # larger than the buffers of earlier buckets
    fdl.grouped_allreduce(tensors, out=tensors, name="large")
    for i, one in enumerate(tensors):
        assert (one.get() == total((300_000,), "float32", i)).all()
    assert fake_devices.nccl().fake_nccl_count(b"memory") == 1
    assert fake_devices.nccl().fake_nccl_count(b"windows") == 1
    before = fake_devices.nccl().fake_nccl_calls(b"MemAlloc")
    fdl.grouped_allreduce(tensors, out=tensors, name="large")
    assert fake_devices.nccl().fake_nccl_calls(b"MemAlloc") == before


def check_groups_of_tensors():
    results = fdl.grouped_allreduce([mine((50,), "int32", i) for i in range(5)])
    for i, result in enumerate(results):
        assert (result.get() == total((50,), "int32", i)).all()


def check_broadcast_from_each_rank():
    for root in range(fdl.size()):
        result = fdl.broadcast(mine((1234,), "float64", root), root)
        assert (result.get() == values(root, (1234,), "float64", root)).all()


def check_allgather_of_uneven_rows():
    result = fdl.allgather(mine((fdl.rank() + 1, 3), "float32"))
    expected = np.concatenate([values(rank, (rank + 1, 3), "float32") for rank in range(fdl.size())])
    assert result.shape == expected.shape and (result.get() == expected).all()


def check_alltoall_of_uneven_rows():
    size, rank = fdl.size(), fdl.rank()
    rows = [one + 1 for one in range(size)]
    result, received = fdl.alltoall(mine((sum(rows), 2), "int32"), rows)
    assert received == [rank + 1] * size
    parts = [values(peer, (sum(rows), 2), "int32")[sum(rows[:rank]) : sum(rows[: rank + 1])] for peer in range(size)]
    assert (result.get() == np.concatenate(parts)).all()


def check_reducescatter_of_uneven_rows():
    size, rank = fdl.size(), fdl.rank()
    rows = 2 * size + 1
    result = fdl.reducescatter(mine((rows, 4), "float32"))
    first = rank * 2 + min(rank, 1)
    assert (result.get() == total((rows, 4), "float32")[first : first + 2 + (rank == 0)]).all()


def check_results_outlive_their_handles():
    results = [fdl.allgather(mine((100,), "float32", i)) for i in range(20)]
    for i, result in enumerate(results):
        expected = np.concatenate([values(rank, (100,), "float32", i) for rank in range(fdl.size())])
        assert (result.get() == expected).all()


def check_ordered_communicators():
    with fdl.Communicator() as comm:
        result = comm.allreduce(mine((5000,), "float32"))
        assert (result.get() == total((5000,), "float32")).all()
        tensor = mine((77,), "int32")
        comm.broadcast(tensor, root=fdl.size() - 1)
        assert (tensor.get() == values(fdl.size() - 1, (77,), "int32")).all()
        gathered = comm.allgather(mine((10,), "float64"))
        assert (gathered.get() == np.stack([values(rank, (10,), "float64") for rank in range(fdl.size())])).all()
        started = [comm.iallreduce(mine((100,), "float32", i)) for i in range(5)]
        for i, request in enumerate(started):
            assert (request.wait().get() == total((100,), "float32", i)).all()
        comm.barrier()
        with pytest.raises(fdl.InvalidArgumentError, match="different devices"):
            comm.allreduce(mine((4,), "float32"), np.empty(4, "float32"))


class WithBuffer(bytearray):
    """An array on a device whose type has the buffer protocol too, as CuPy's has: it gives memory of the host."""

    def __init__(self, array):
        super().__init__(array.nbytes)
        self.array = array

    def __getattr__(self, name):
        return getattr(self.array, name)


def check_arrays_with_a_buffer_are_used_on_the_device():
    given, out = mine((500,), "float32"), mine((500,), "float32")
    fdl.allreduce(WithBuffer(given), out=WithBuffer(out), name="with a buffer")
    assert (out.get() == total((500,), "float32")).all()


def check_messages():
    """Messages around the ring of ranks, between devices and to the host's memory."""
    size, rank = fdl.size(), fdl.rank()
    after, before = (rank + 1) % size, (rank - 1) % size
    with fdl.Communicator() as comm:
        for count in (1, 30_000):
            for target in (fake_devices.array(np.zeros(count, "float32")), np.zeros(count, "float32")):
                received = comm.irecv(target, before)
                sent = comm.isend(mine((count,), "float32"), after)
                assert received.wait() is target
                sent.wait()
                there = target.get() if isinstance(target, fake_devices.Array) else target
                assert (there == values(before, (count,), "float32")).all()


def check_operations_are_ordered_with_the_stream():
    """The array's own stream is held while the operation is submitted. Its queued work precedes the operation."""
    library = fake_devices.driver()
    source, target = fake_devices.array(np.full(1000, 5, "int32")), fake_devices.array(np.zeros(1000, "int32"))
    library.fake_cuda_hold()
    copy = library.cuMemcpyAsync
    copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    fake_devices.with_context(0, lambda: copy(target.pointer, source.pointer, 4000, 1))
    handle = fdl.allreduce_async(target, name="in line", out=target)
    library.fake_cuda_go_on()
    handle.wait()
    assert (target.get() == 5 * fdl.size()).all()


def check_mixed_kinds_of_memory_are_a_mismatch():
    tensor = mine((4,), "float32") if fdl.rank() == 0 else np.ones(4, "float32")
    if fdl.size() > 1:
        with pytest.raises(fdl.MismatchError, match="a tensor on the CPU"):
            fdl.allreduce(tensor, name="mixed")
    with pytest.raises(fdl.InvalidArgumentError, match="must be on the same device"):
        fdl.allreduce(mine((4,), "float32"), out=np.empty(4, "float32"))


def check_a_group_uses_one_device():
    with pytest.raises(fdl.InvalidArgumentError, match="another device than cuda:1"):
        fdl.allreduce(fake_devices.array(np.ones(4, "float32"), device=1), name="elsewhere")
    with pytest.raises(fdl.InvalidArgumentError, match="cuda:99: there is no such device"):
        fdl.core.open_device(2, 99)
    assert fdl.core.can_use_device(2, 0)


def check_adasum_needs_the_cpu():
    with pytest.raises(fdl.InvalidArgumentError, match="copy the tensor to the CPU"):
        fdl.allreduce(mine((4,), "float32"), fdl.core.Op.ADASUM, name="adasum")


def check_zz_joined_ranks_contribute_zeros():
    if fdl.rank() == 0:
        assert fdl.join() >= 0
        return
    result = fdl.allreduce(mine((100,), "float32"), name="uneven")
    assert (result.get() == total((100,), "float32") - values(0, (100,), "float32")).all()
    fdl.join()


# ---- bad days: jobs of their own


def run_short_of_device_memory():
    """The fusion buffer does not fit on rank 0's device. That rank uses a smaller one, or the host's memory."""
    fdl.init()
    tensors = [mine((700_001 + i,), "float32", i) for i in range(3)]  # a little more than 8 MiB
    copies = [[fake_devices.array(one.get()) for one in tensors] for _ in range(2)]
    if fdl.rank() == 0:
        for k in range(1, 1 + int(os.environ["REFUSALS"])):
            fake_devices.driver().fake_cuda_fail(b"device memory", k, 2)  # the caller or the progress thread allocates
    for step, sums in enumerate(copies):
        fdl.grouped_allreduce(sums, name="fused", out=sums)
        for i, one in enumerate(sums):
            assert (one.get() == total((700_001 + i,), "float32", i)).all(), (step, i)


def lose_a_device():
    """Rank 1's device is lost during an operation that all ranks have begun. Every rank gets an error that names it."""
    fdl.init()
    tensor = mine((100_000,), "float32")
    fdl.allreduce(tensor, name="before", out=tensor)
    fake_devices.synchronize()
    if fdl.rank() == 1:
        fake_devices.driver().fake_cuda_hold()
    handle = fdl.allreduce_async(tensor, name="after", out=tensor)
    if fdl.rank() == 1:
        fake_devices.driver().fake_cuda_fall_off(0, 214)
        fake_devices.driver().fake_cuda_go_on()
    with pytest.raises(fdl.Error, match=r"cuda:0.*ECC") as failure:
        handle.wait(timeout=20)
    print("raised:", failure.value)
    with pytest.raises(fdl.Error):
        fdl.allreduce(np.ones(1), name="later")


def lose_a_rank():
    fdl.init()
    tensor = mine((500_000,), "float32")
    with pytest.raises(fdl.PeerLostError) as failure:
        for step in range(10_000):
            if fdl.rank() == 1 and step == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            started = time.monotonic()
            fdl.allreduce(tensor, name="loop", out=tensor)
    assert failure.value.culprit_rank == 1 and time.monotonic() - started < 20


def capture_a_stream():
    fdl.init()
    tensor = mine((10,), "float32")
    library = fake_devices.driver()
    stream = fake_devices.Stream("cuda:0")
    tensor.stream = stream.cuda_stream
    library.fake_cuda_begin_capture.argtypes = library.fake_cuda_end_capture.argtypes = [ctypes.c_void_p]
    assert library.fake_cuda_begin_capture(stream.cuda_stream) == 0
    with pytest.raises(fdl.UnsupportedError, match="captured into a graph, and operations by name are agreed upon"):
        fdl.allreduce(tensor, name="captured", out=tensor)
    with fdl.Communicator() as comm:
        if os.environ.get("FARANDOLE_DEVICE_COLLECTIVES") == "staged" and fdl.size() > 1:
            with pytest.raises(fdl.UnsupportedError, match="captured into a graph"):
                comm.allreduce(tensor, tensor)
    assert library.fake_cuda_end_capture(stream.cuda_stream) >= 0


def ask_for_what_is_not_there():
    fdl.init()
    with pytest.raises(fdl.UnsupportedError, match="no-such-library.*driver"):
        fdl.core.open_device(2, 0)
    with pytest.warns(RuntimeWarning, match="go through memory of the host"):
        assert not fdl.core.can_use_device(2, 0)
    assert not fdl.core.can_use_device(2, 0)  # reported once
    assert fdl.allreduce(np.ones(3)).tolist() == [fdl.size()] * 3


@pytest.mark.parametrize(("refusals", "line"), [
    ("1", "the fusion buffer of all ranks has 8388608 bytes instead of 16777216, and larger buckets go in rounds"),
    ("2", "the fusion buffer of all ranks has 4194304 bytes instead of 16777216, and larger buckets go in rounds"),
    ("4", "its fusion buffer of 16777216 bytes is in memory of the host, which is slow")])  # fmt: skip
def test_a_fusion_buffer_that_does_not_fit_is_reported_once(refusals, line):
    printed = launch(2, run_short_of_device_memory, fake_devices.environment(nccl=False, REFUSALS=refusals))
    assert printed[0].count(f"{line}: free memory of the device, or lower FARANDOLE_FUSION_BYTES") == 1, printed[0]
    assert printed[0].count("fusion buffer") == 1 and "fusion buffer" not in printed[1], printed


def test_a_lost_device_is_reported_on_all_ranks():
    printed = launch(3, lose_a_device, fake_devices.environment(nccl=False))
    assert all("rank 1" in one for one in printed), printed


def sum_in_one_kernel():
    fdl.init()
    for dtype in DTYPES:
        for count in (1, 3, 1000, 8000):
            tensor = fake_devices.array(values(fdl.rank(), (count,), dtype), device=fdl.rank())
            assert (fdl.allreduce(tensor).get() == total((count,), dtype)).all(), (dtype, count)
    assert fake_devices.nccl().fake_nccl_calls(b"AllReduce") == 0
    large = fake_devices.array(values(fdl.rank(), (100_000,), "float32"), device=fdl.rank())
    assert (fdl.allreduce(large).get() == total((100_000,), "float32")).all()
    assert fake_devices.nccl().fake_nccl_calls(b"AllReduce") == 1


def lose_a_rank_in_one_kernel():
    fdl.init()
    comm = fdl.Communicator()
    tensor = fake_devices.array(values(fdl.rank(), (100,), "float32"), device=fdl.rank())
    comm.allreduce(tensor, tensor)
    assert (tensor.get() == total((100,), "float32")).all()
    if fdl.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(fdl.PeerLostError, match="rank 1"):
        while True:
            comm.allreduce(tensor, tensor)
            fake_devices.synchronize(fdl.rank())  # the kernel waits for rank 1, whose flag never comes


ONE_SHOT = fake_devices.environment(nccl=True, FAKE_CUDA_IPC="1", FARANDOLE_ONE_SHOT_BYTES="64K")


def test_small_sums_are_one_kernel_over_memory_of_other_processes():
    launch(3, sum_in_one_kernel, ONE_SHOT)


def test_a_kernel_that_waits_for_a_killed_rank_ends():
    launch(3, lose_a_rank_in_one_kernel, ONE_SHOT, codes=[0, -9, 0])


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_is_killed_is_named(transport):
    launch(3, lose_a_rank, fake_devices.environment(nccl=False, FARANDOLE_TRANSPORT=transport), codes=[0, -9, 0])


def test_captured_streams_are_rejected():
    launch(2, capture_a_stream, fake_devices.environment(nccl=False))


def test_a_missing_driver_is_reported_once_and_the_host_is_used():
    launch(2, ask_for_what_is_not_there, {"FARANDOLE_CUDA_LIBRARY": "/no-such-library.so"})


ENVIRONMENTS = {"staged": fake_devices.environment(nccl=False),
                "nccl": fake_devices.environment(nccl=True, NCCL_MULTI_RANK_GPU_ENABLE="1")}  # fmt: skip


@pytest.mark.parametrize("by", ENVIRONMENTS)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_devices(check, size, by):
    require(sys.modules[__name__], size, check, ENVIRONMENTS[by])
