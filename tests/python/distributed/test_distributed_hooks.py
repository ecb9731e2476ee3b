"""Hooks of process groups: torch's flight recorder, its check for NaN, and hooks of the program.

PyTorch 2.15 and later attach them to every group. Where torch has no hooks, the same calls do not pass through its
dispatcher.
"""

import os
import pickle
import tempfile

import farandole
import torch
import torch.distributed as dist
from expect import raises
from farandole.torch.distributed import Work
from launch import launch
from torch import nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

c10d = torch._C._distributed_c10d
HAS_RECORDER = hasattr(dist.distributed_c10d, "_maybe_attach_flight_recorder")
HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
HAS_NAN_CHECK = hasattr(c10d, "NanCheckHook")
numbers = iter(range(1000))


def start():
    rank, size = int(os.environ["FARANDOLE_RANK"]), int(os.environ["FARANDOLE_SIZE"])
    store = os.path.join(tempfile.gettempdir(), f"farandole-hooks-{os.environ['FARANDOLE_JOB_KEY']}-{next(numbers)}")
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size)
    return rank, size


def call_everything(rank, size):
    """Each collective once, with its result checked; returns the names under which torch records them."""
    tensor = torch.full((3,), float(rank + 1))
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, Work) and work.wait() and work.is_completed() and work.exception() is None
    assert tensor.tolist() == [3.0] * 3
    with _coalescing_manager():
        dist.all_reduce(tensor)
        dist.all_reduce(tensor[:0])
    dist.reduce(tensor, 0)
    assert rank or tensor.tolist() == [12.0] * 3
    dist.broadcast(tensor, 0)
    assert tensor.tolist() == [12.0] * 3
    dist.barrier()
    pieces = [torch.empty(1) for _ in range(size)]
    mine = torch.tensor([float(rank)])
    dist.all_gather(pieces, mine)
    assert [one.item() for one in pieces] == [0.0, 1.0]
    whole = torch.empty(size)
    dist.all_gather_into_tensor(whole, mine)
    assert whole.tolist() == [0.0, 1.0]
    dist.gather(mine, pieces if rank == 0 else None)
    dist.scatter(mine, pieces if rank == 0 else None)
    assert mine.item() == float(rank)
    dist.reduce_scatter(mine, [torch.ones(1), torch.ones(1)])
    assert mine.item() == 2.0
    dist.reduce_scatter_tensor(mine, torch.ones(size))
    assert mine.item() == 2.0
    exchanged = torch.empty(size)
    dist.all_to_all_single(exchanged, torch.tensor([rank * 2.0, rank * 2.0 + 1]))
    assert exchanged.tolist() == [float(rank), rank + 2.0]
    return ["all_reduce", "allreduce_coalesced", "reduce", "broadcast", "barrier", "all_gather", "_all_gather_base",
            "gather", "scatter", "reduce_scatter", "_reduce_scatter_base", "all_to_all_single"]  # fmt: skip


def messages(rank):
    message = torch.tensor([7.0])
    dist.send(message, 1) if rank == 0 else dist.recv(message.zero_(), 0)
    assert message.item() == 7.0
    if rank == 0:
        dist.isend(message, 1).wait()
    else:
        assert dist.recv(message.zero_()) == 0 and message.item() == 7.0


def recorded():
    trace = pickle.loads(c10d._dump_fr_trace(backend="farandole"))
    return [one["profiling_name"].removeprefix("farandole:") for one in trace["entries"]], trace


def operations_are_recorded():
    rank, size = start()
    names = call_everything(rank, size)
    messages(rank)
    part = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=part)
    model = DistributedDataParallel(nn.Linear(4, 1), process_group=part)
    before = 0
    if HAS_RECORDER:
        found, trace = recorded()
        ours = [name.split(" ")[0] for name in found if not name.startswith(("send", "recv", "nccl"))]
        assert ours[: len(names)] == names, found
        point_to_point = [name.split(" ")[0] for name in found if name.startswith(("send", "recv"))]
        assert point_to_point == (["send", "send"] if rank == 0 else ["recv", "recv"]), found
        entry = trace["entries"][0]
        assert entry["input_sizes"] == [[3]] and entry["retired"] and entry["process_group"][1] == "default_pg"
        assert any(frame["name"] == "call_everything" for frame in entry["frames"])
        before = found.count("all_reduce")
    model(torch.full((1, 4), float(rank))).sum().backward()
    assert model.module.weight.grad.tolist() == [[0.5] * 4]
    if HAS_RECORDER:
        assert recorded()[0].count("all_reduce") == before + 1, "the reduction of the gradients, which C++ starts"
        raises(farandole.InvalidArgumentError, "there is no rank 9", dist.group.WORLD.send, [torch.ones(1)], 9, 0)
        last = recorded()[1]["entries"][-1]
        assert last["profiling_name"].startswith("farandole:send") and not last["retired"], "it was not issued"
    dist.destroy_process_group()


def nothing_is_recorded():
    rank, size = start()
    call_everything(rank, size)
    messages(rank)
    if HAS_RECORDER:
        assert recorded()[0] == []
    dist.destroy_process_group()


def programs_hooks_are_called():
    rank, size = start()
    group, seen = dist.group.WORLD, []
    if HAS_HOOKS:
        group.register_pre_hook(1, lambda call: seen.append((call.name.name, call.async_op)))
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), async_op=True).wait()
        dist.barrier()
        assert seen == [("ALLREDUCE", False), ("ALLREDUCE", True), ("BARRIER", False)]
        group.unregister_pre_hook(1)
    call_everything(rank, size)
    assert len(seen) == (3 if HAS_HOOKS else 0)
    dist.destroy_process_group()


def a_nan_is_found():
    rank, _ = start()
    if HAS_NAN_CHECK:
        tensor = torch.tensor([1.0, float("nan")])
        raises(RuntimeError, "(?i)nan", dist.all_reduce, tensor)
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1.0, 1.0]
    dist.destroy_process_group()


def test_the_flight_recorder_lists_the_operations():
    launch(2, operations_are_recorded)


def test_without_a_recorder_the_dispatcher_is_skipped():
    launch(2, nothing_is_recorded, {"TORCH_FR_BUFFER_SIZE": "0"})


def test_hooks_of_the_program_are_called():
    launch(2, programs_hooks_are_called, {"TORCH_FR_BUFFER_SIZE": "0"})


def test_the_nan_check_finds_a_nan():
    launch(2, a_nan_is_found, {"TORCH_DIST_NAN_CHECK": "1"})


def groups_are_merged():
    rank, size = start()
    alone = dist.new_group([0]), dist.new_group([1])
    store = dist.PrefixStore("merged/", dist.group.WORLD.get_group_store())
    merged = alone[rank].merge_remote_group(store, size, group_name="both")
    assert merged.size() == size and merged.getGroupName() == "both"
    ranks = torch.zeros(size, dtype=torch.int64)
    merged.all_gather_single(ranks, torch.tensor([merged.rank()])).wait()
    assert ranks.tolist() == [0, 1]
    tensor = torch.full((2,), rank + 1.0)
    merged.allreduce([tensor]).wait()
    assert tensor.tolist() == [3.0, 3.0]
    merged.shutdown()
    dist.destroy_process_group()


def test_groups_are_merged():
    launch(2, groups_are_merged)
