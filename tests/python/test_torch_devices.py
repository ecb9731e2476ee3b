"""Tensors of PyTorch on CUDA: operations by name, and torch.distributed. This build of PyTorch has no CUDA: tensors and
streams are the stand-in's (standin.py). What PyTorch itself would do on a device is not tested here."""

import os
import sys

import pytest
import torch
import torch.distributed as dist

import farandole.torch as hvd
import standin
from launch import checks_of, require
from test_devices import ENVIRONMENTS

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def values(rank, count, dtype, salt=0):
    return ((torch.arange(count) * 7 + rank * 3 + salt) % 5).to(dtype)


def total(count, dtype, salt=0):
    return sum(values(rank, count, dtype, salt) for rank in range(hvd.size())).to(dtype)


def mine(count, dtype, salt=0):
    return standin.Tensor(values(hvd.rank(), count, dtype, salt))


def check_init():
    hvd.init()
    standin.play_torch_cuda()


def check_sums():
    for dtype in TYPES:
        for count in (1, 1000, 70_001):
            result = hvd.allreduce(mine(count, dtype), op=hvd.Sum)
            assert isinstance(result, standin.Tensor) and torch.equal(result.get(), total(count, dtype)), (dtype, count)


def check_in_place_averages():
    tensor = mine(1000, torch.float32)
    assert hvd.allreduce_(tensor) is tensor
    assert torch.allclose(tensor.get(), total(1000, torch.float32) / hvd.size(), rtol=1e-6)


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


def check_one_device_for_all():
    with pytest.raises(hvd.HorovodInternalError, match="same device"):
        hvd.grouped_allreduce_async([standin.Tensor(torch.ones(3)), standin.Tensor(torch.ones(3), device=1)])


def check_torch_distributed():
    os.environ.pop("FARANDOLE_RENDEZVOUS")  # it is the other world's
    store = dist.FileStore(os.environ["TEST_STORE"], hvd.size())
    dist.init_process_group("farandole", store=store, rank=hvd.rank(), world_size=hvd.size())
    for count in (1, 5000):
        tensor = mine(count, torch.float32)
        dist.all_reduce(tensor)
        assert torch.equal(tensor.get(), total(count, torch.float32))
        works = [(one, dist.all_reduce(one, async_op=True)) for one in (mine(count, torch.float32, i) for i in range(6))]
        for i, (one, work) in enumerate(works):
            work.wait()
            assert torch.equal(one.get(), total(count, torch.float32, i))
        dist.broadcast(tensor, src=0)
    whole = standin.Tensor(torch.zeros(hvd.size() * 9))
    dist.all_gather_into_tensor(whole, mine(9, torch.float32))
    assert torch.equal(whole.get(), torch.cat([values(rank, 9, torch.float32) for rank in range(hvd.size())]))
    part = standin.Tensor(torch.zeros(4))
    dist.reduce_scatter_tensor(part, mine(4 * hvd.size(), torch.float32))
    assert torch.equal(part.get(), total(4 * hvd.size(), torch.float32)[hvd.rank() * 4 : hvd.rank() * 4 + 4])
    if hvd.size() > 1:
        exchange_messages()
    dist.barrier()
    dist.destroy_process_group()


def exchange_messages():
    """From a device to a device or to the host and back, small ones too, and one that comes before it is wanted."""
    rank, other = hvd.rank(), 1 - hvd.rank()
    for count in (1, 12, 13, 5000):
        for there in (standin.Tensor, torch.clone):
            given = values(rank, count, torch.float32)
            received = there(torch.zeros(count))
            sent = dist.isend(standin.Tensor(given) if there is torch.clone else there(given), other)
            assert dist.irecv(received, other).wait()
            sent.wait()
            got = received.get() if isinstance(received, standin.Tensor) else received
            assert torch.equal(got, values(other, count, torch.float32)), (count, there)
            got = standin.Tensor(torch.zeros(count))
            sent = dist.isend(given, other)
            assert dist.irecv(got, other).wait()
            sent.wait()
            assert torch.equal(got.get(), values(other, count, torch.float32)), (count, there)
    works = [dist.isend(mine(700, torch.float32, tag), other, tag=tag) for tag in (1, 2)]
    for tag in (2, 1):
        late = standin.Tensor(torch.zeros(700))
        assert dist.irecv(late, other, tag=tag).wait()
        assert torch.equal(late.get(), values(other, 700, torch.float32, tag))
    for work in works:
        work.wait()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("by", ENVIRONMENTS)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_torch_on_devices(check, size, by, store):
    require(sys.modules[__name__], size, check, ENVIRONMENTS[by] | {"TEST_STORE": str(store / f"{by}{size}")})
