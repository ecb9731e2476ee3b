"""Symmetric memory of a group, on fakes for CUDA and NCCL: arrays in it, and gradients. This build of PyTorch has no
CUDA, so the optimizer is tested by the memory that it requests. Data are small integers: sums are exact."""

import os
import sys

import fake_devices
import farandole as fdl
import farandole.torch as hvd
import numpy as np
import pytest
import torch
from farandole import core
from farandole.torch import gradient_buckets
from farandole.torch import tensors as tensors_module
from launch import checks_of, require
from test_devices import ENVIRONMENTS, total, values

COUNT = 5000
PLACE = 2, 0, 1  # CUDA, the first device, its default stream


def held(count=COUNT, dtype="float32", group=None):
    """An array in memory of the group, with this rank's values."""
    memory = core.allocate_on_device(count * np.dtype(dtype).itemsize, PLACE, group)
    return memory.__dlpack_device__(), fake_devices._adopted(memory, 0).view(dtype)


def put(array, numbers):
    fake_devices.synchronize()  # it is zeroed in stream order
    fake_devices.driver().fake_cuda_write(array.pointer, np.ascontiguousarray(numbers).ctypes.data, numbers.nbytes)


def known():
    """The number of windows of this process that NCCL has, if it runs the group."""
    if "FARANDOLE_NCCL_LIBRARY" not in os.environ or fdl.size() == 1:
        return None
    return fake_devices.nccl().fake_nccl_count(b"windows")


def check_init():
    with pytest.raises(fdl.NotInitializedError):
        core.allocate_on_device(100, PLACE)
    hvd.init()


def check_arrays_are_zeros_and_reduce_in_place():
    device, array = held()
    assert device == (2, 0) and not array.get().any()
    put(array, values(fdl.rank(), COUNT, "float32"))
    before = known()
    fdl.allreduce(array, out=array)
    assert (array.get() == total(COUNT, "float32")).all()
    if before is not None:
        assert known() == before + 1


def check_adjacent_tensors_are_reduced_as_one():
    _, array = held()
    for dtype in ("float32", "int32"):
        parts = [fake_devices.Array((size,), dtype, 0, array, array.pointer + 4 * start)
                 for start, size in ((0, 10), (10, 990), (1000, 4000))]  # fmt: skip
        for step in range(3):
            put(array, values(fdl.rank(), COUNT, dtype, step))
            launches = fake_devices.driver().fake_cuda_calls(b"cuLaunchKernel")
            fdl.grouped_allreduce(parts, out=parts, name=f"parts {dtype}")
            if known() is not None:
                assert fake_devices.driver().fake_cuda_calls(b"cuLaunchKernel") == launches, "nothing is packed"
            whole = np.concatenate([part.get() for part in parts])
            assert (whole == total(COUNT, dtype, step)).all()


def check_views_keep_the_memory():
    for _ in range(3):
        _, array = held(1 << 20)
        part = fake_devices.Array((5,), "float32", 0, array, array.pointer + 400)
        del array
        put(part, values(fdl.rank(), 5, "float32"))
        fdl.allreduce(part, out=part)
        assert (part.get() == total(5, "float32")).all()


def check_unequal_sizes_are_a_mismatch():
    if fdl.size() == 1:
        return
    with pytest.raises(fdl.MismatchError, match="rank 1"):
        core.allocate_on_device(100 + fdl.rank(), PLACE)
    held()


class Cuda(torch.Tensor):
    """Claims to be on a CUDA device."""

    device = property(lambda self: torch.device("cuda", 0))


def buckets_of(monkey, elastic):
    """The memory that a bucket of gradients on CUDA requests."""
    asked = []

    def empty(*size, **options):
        asked.append((size, options))
        return torch.zeros(*size, dtype=options["dtype"])

    zeros = torch.zeros
    monkey.setattr(gradient_buckets, "empty", empty)
    monkey.setattr(gradient_buckets, "is_elastic", lambda: elastic)
    monkey.setattr(gradient_buckets.torch, "zeros", lambda *size, dtype, device=None: zeros(*size, dtype=dtype))
    parameters = [
        torch.nn.Parameter(torch.ones(3)).as_subclass(Cuda),
        torch.nn.Parameter(torch.ones(2, 2)).as_subclass(Cuda),
    ]
    return gradient_buckets.SharedBucket(parameters, 0, hvd.global_process_set), asked


def check_gradients_on_cuda_use_memory_of_their_process_set():
    with pytest.MonkeyPatch.context() as monkey:
        bucket, asked = buckets_of(monkey, elastic=False)
        ((size, options),) = asked
        assert size == (32,) and options["dtype"] == torch.float32 and options["device"] == torch.device("cuda", 0)
        assert options["process_set"] is hvd.global_process_set
        assert len(bucket.views) == 2
    with pytest.MonkeyPatch.context() as monkey:
        _, asked = buckets_of(monkey, elastic=True)
        assert asked == [], "a rank that joins later cannot allocate collectively"


def check_empty_on_cuda_is_symmetric_memory():
    """Without CUDA the test ends where PyTorch would create the tensor from the core's memory."""
    fake_devices.fake_torch_cuda()
    made = []

    def as_tensor(memory, device):
        assert device == torch.device("cuda", 0)
        made.append(fake_devices._adopted(memory, 0))
        return torch.zeros(made[0].nbytes, dtype=torch.uint8)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(tensors_module.torch, "as_tensor", as_tensor)
        tensor = hvd.empty(10, 3, dtype=torch.float64, device="cuda:0")
    assert tensor.shape == (10, 3) and tensor.dtype == torch.float64 and made[0].nbytes == 240
    array = made[0].view("float64")
    put(array, values(fdl.rank(), 30, "float64"))
    fdl.allreduce(array, out=array)
    assert (array.get() == total(30, "float64")).all()


def check_memory_outlives_shutdown():
    _, array = held()
    put(array, values(fdl.rank(), COUNT, "float32"))
    fdl.shutdown()
    assert (array.get() == values(int(os.environ["FARANDOLE_RANK"]), COUNT, "float32")).all()
    del array


@pytest.mark.parametrize("by", ENVIRONMENTS)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_device_memory(check, size, by):
    require(sys.modules[__name__], size, check, ENVIRONMENTS[by])
