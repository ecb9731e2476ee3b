"""Groups with a backend for each device type, and tensors that no backend supports.

There is no GPU: Gloo stands for the other backend, and the CPU for either device.
"""

import os
import tempfile

import farandole
import pytest
import torch
import torch.distributed as dist
from expect import raises
from farandole.torch.distributed import ProcessGroup, Work
from launch import launch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ.get("FARANDOLE_RANK", 0)), int(os.environ.get("FARANDOLE_SIZE", 1))
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
numbers = iter(range(1000))


def start(backend, **options):
    store = os.path.join(tempfile.gettempdir(), f"farandole-mixed-{os.environ['FARANDOLE_JOB_KEY']}-{next(numbers)}")
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size, **options)
    return dist.group.WORLD


def is_gloo(backend):
    return isinstance(backend, dist.ProcessGroupGloo)


def check_calls(group, ours):
    """All kinds of calls on CPU tensors, by the CPU's backend."""
    tensor = torch.full((3,), float(rank + 1))
    work = dist.all_reduce(tensor, group=group, async_op=True)
    assert isinstance(work, Work) is ours
    work.wait()
    assert tensor.tolist() == [3.0] * 3
    gathered = [torch.empty(2), torch.empty(2)]
    dist.all_gather(gathered, torch.full((2,), float(rank)), group=group)
    assert [one.tolist() for one in gathered] == [[0.0, 0.0], [1.0, 1.0]]
    pieces = [torch.empty(1), torch.empty(1)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), pieces, dst=0, group=group)
    assert rank == 1 or [one.item() for one in pieces] == [0.0, 1.0]
    objects = [None, None]
    dist.all_gather_object(objects, f"rank {rank}", group=group)
    assert objects == ["rank 0", "rank 1"]
    message = torch.full((1,), float(rank))
    dist.send(message, 1, group=group) if rank == 0 else dist.recv(message, 0, group=group)
    assert message.item() == 0.0
    whole = torch.empty(4)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)), group=group)
    assert whole.tolist() == [0.0, 0.0, 1.0, 1.0]
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(4.0), group=group)
    assert part.tolist() == [4.0 * rank, 4.0 * rank + 2]
    with dist._coalescing_manager(group):
        dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [6.0] * 3
    dist.barrier(group)


def check_training(group):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1), process_group=group)
    model(torch.full((1, 4), float(rank))).sum().backward()
    assert model.module.weight.grad.tolist() == [[0.5] * 4]


def each_device_has_its_backend():
    for backend, ours in (
        ("cpu:farandole,cuda:gloo", CPU),
        ("cuda:gloo,cpu:farandole", CPU),
        ("cpu:gloo,cuda:farandole", CUDA),
    ):
        theirs = CUDA if ours is CPU else CPU
        group = start(backend)
        for one in (group, dist.new_group(), dist.new_group([0, 1])):
            assert isinstance(one, ProcessGroup) and set(one._device_types) == {CPU, CUDA}
            assert one._get_backend(ours) is one and is_gloo(one._get_backend(theirs))
            assert dist.get_backend_config(one) == backend
            check_calls(one, ours is CPU)
            check_training(one)
        raises(
            farandole.UnsupportedError,
            r"cannot be split; call torch.distributed.new_group\(ranks\)",
            group.split_group,
            [0, 1],
        )
        with pytest.raises(RuntimeError):
            dist.split_group(group, [[0, 1]])
        dist.destroy_process_group()


def devices_of_one_backend():
    group = start("cpu:farandole,cuda:farandole")
    assert type(group) is ProcessGroup and group._get_backend(CUDA) is group
    check_calls(group, True)
    dist.destroy_process_group()


def what_cannot_be_made_is_refused():
    dist.is_nccl_available = lambda: False
    raises(
        farandole.UnsupportedError,
        "this build of PyTorch has no NCCL; use backend='farandole' for all devices",
        start,
        "cpu:farandole,cuda:nccl",
    )
    text = r"'cuda:ucc' cannot be combined with farandole.*new_group\(backend='ucc'\)"
    raises(farandole.UnsupportedError, text, start, "cpu:farandole,cuda:ucc")
    start("farandole")
    raises(farandole.UnsupportedError, "only gloo and nccl can", dist.new_group, backend="cpu:farandole,cuda:mpi")
    dist.destroy_process_group()


class FakeNCCL:
    """A fake of ProcessGroupNCCL: Gloo with NCCL's options."""

    class Options:
        pass

    made = []

    def __new__(cls, store, rank, size, options):
        cls.made.append(options)
        return dist.ProcessGroupGloo(store, rank, size, options._timeout)


def nccl_is_made():
    dist.ProcessGroupNCCL, dist.is_nccl_available = FakeNCCL, lambda: True
    group = start("cpu:farandole,cuda:nccl")
    assert [one.global_ranks_in_group for one in FakeNCCL.made] == [[]], "the default group's, as torch gives them"
    assert is_gloo(group._get_backend(CUDA)) and group._get_backend(CPU) is group
    wanted = FakeNCCL.Options()
    other = dist.new_group([0, 1], pg_options=wanted)
    assert (
        FakeNCCL.made[1] is wanted and wanted.global_ranks_in_group == [0, 1] and wanted.group_name == other.group_name
    )
    check_calls(other, True)
    dist.destroy_process_group()


def mixes():
    for check in (each_device_has_its_backend, devices_of_one_backend, what_cannot_be_made_is_refused, nccl_is_made):
        check()


def test_each_device_type_has_its_backend():
    launch(2, mixes)


def tensors_without_data():
    group = start("farandole")
    mesh = init_device_mesh("cpu", (size,))
    whole = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    meta = torch.ones(4, device="meta")
    for tensor, text in (
        (whole, r"is a DTensor.*to_local\(\)"),
        (meta, r"on the meta device and has no data.*to_empty\(\)"),
    ):
        for call in (
            lambda one: dist.all_reduce(one),
            lambda one: dist.all_reduce(one, async_op=True),
            lambda one: dist.broadcast(one, 0),
            lambda one: dist.all_gather([torch.ones(4), torch.ones(4)], one),
            lambda one: dist.all_gather([one, torch.ones(4)], torch.ones(4)),
            lambda one: dist.reduce_scatter(torch.ones(4), [one, one]),
            lambda one: group._allgather_base(torch.ones(8), one),
            lambda one: dist.all_to_all_single(torch.ones(4), one),
            lambda one: dist.isend(one, 1 - rank),
            lambda one: dist.irecv(one, 1 - rank),
        ):
            error = raises(farandole.InvalidArgumentError, text, call, tensor)
            assert isinstance(error, ValueError)
    dist.all_reduce(whole.to_local())
    assert whole.to_local().tolist() == [2.0] * 4

    class Subclass(torch.Tensor):
        pass

    tensor = torch.ones(2).as_subclass(Subclass)
    dist.all_reduce(tensor)  # with memory of its own
    assert tensor.tolist() == [2.0, 2.0]
    parameter = nn.Parameter(torch.ones(2))
    dist.all_reduce(parameter.data)
    dist.broadcast(parameter, 0)
    assert parameter.tolist() == [2.0, 2.0]
    dist.destroy_process_group()


def test_tensors_without_data_are_named():
    launch(2, tensors_without_data)
