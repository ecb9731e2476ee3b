"""Training over backend="farandole": on two ranks it gives the same bits as over Gloo.

(Of two numbers there is one sum, whatever the order.)
"""

import contextlib
import copy
import os
import shutil
import sys
import tempfile
import warnings

import farandole.torch.distributed
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from launch import checks_of, require
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore", FutureWarning)
KEY = os.environ.get("FARANDOLE_JOB_KEY", "")
groups = {}


def check_start():
    rank, size = int(os.environ["FARANDOLE_RANK"]), int(os.environ["FARANDOLE_SIZE"])
    for name in [name for name in os.environ if name.startswith("FARANDOLE_")]:
        del os.environ[name]
    store = os.path.join(tempfile.gettempdir(), f"farandole-store-{KEY}")
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size)
    groups.update(farandole=dist.group.WORLD, gloo=dist.new_group(backend="gloo"))


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 17), nn.Tanh(), nn.Linear(17, 4))


def batch(step, rank=None):
    generator = torch.Generator().manual_seed(100 * step + (dist.get_rank() if rank is None else rank))
    return torch.randn(5, 8, generator=generator), torch.randn(5, 4, generator=generator)


def train(model, optimizer, steps=4, wrap=None, first=0):
    for step in range(first, first + steps):
        inputs, targets = batch(step)
        with wrap(step) if wrap else contextlib.nullcontext():
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
        if not wrap or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal_on_both(run):
    """Runs a program over both backends and asserts equal bits, which differ from the initial ones."""
    results = {name: run(group) for name, group in groups.items()}
    for one, other, before in zip(results["farandole"], results["gloo"], make_model().parameters()):
        assert torch.equal(one, other), (one, other)
        assert one.shape != before.shape or not torch.equal(one, before)
    return results["farandole"]


def distributed(group, **options):
    torch.manual_seed(dist.get_rank())  # all ranks get rank 0's parameters
    model = make_model() if dist.get_rank() == 0 else nn.Sequential(*[copy.deepcopy(one) for one in make_model()])
    if dist.get_rank() != 0:
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    return DistributedDataParallel(model, process_group=group, **options)


def check_ddp():
    def run(group, **options):
        model = distributed(group, **options)
        return train(model, torch.optim.Adam(model.parameters(), 0.01))

    trained = equal_on_both(run)
    equal_on_both(lambda group: run(group, bucket_cap_mb=0.0005, gradient_as_bucket_view=True, static_graph=True))
    equal_on_both(lambda group: run(group, find_unused_parameters=True))
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [parameter.tolist() for parameter in trained])
    assert all(one == gathered[0] for one in gathered)


def check_ddp_without_synchronisation_in_between():
    def run(group):
        model = distributed(group)
        wrap = lambda step: model.no_sync() if step % 2 == 0 else contextlib.nullcontext()  # noqa: E731
        return train(model, torch.optim.SGD(model.parameters(), 0.1), steps=6, wrap=wrap)

    equal_on_both(run)


def check_ddp_with_communication_hooks():
    def run(group, hook, state, **options):
        model = distributed(group, **options)
        model.register_comm_hook(state(group), hook)
        return train(model, torch.optim.SGD(model.parameters(), 0.1))

    plain = lambda group: group  # noqa: E731

    def bf16_hook(state, bucket):  # under its own name torch keeps it for NCCL
        return default_hooks.bf16_compress_hook(state, bucket)

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, bf16_hook):
        equal_on_both(lambda group, hook=hook: run(group, hook, plain, bucket_cap_mb=0.0005))
    # It starts collectives in callbacks, whose order among those of other buckets nothing settles: so there is one
    # bucket, or each is finished before the next.
    power = lambda group: powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)  # noqa: E731
    equal_on_both(lambda group: run(group, powerSGD_hook.powerSGD_hook, power))
    several = farandole.torch.distributed.in_order(powerSGD_hook.powerSGD_hook)
    equal_on_both(lambda group: run(group, several, power, bucket_cap_mb=0.0005))


def check_sparse_tensors():
    rank = dist.get_rank()
    for dtype in (torch.float32, torch.int64):
        for entries, dense in ((3, ()), (3 * rank, (2,)), (0, (4,))):
            generator = torch.Generator().manual_seed(7 + rank)
            indices = torch.randint(0, 5, (2, entries), generator=generator)
            values = torch.randint(-9, 9, (entries, *dense), generator=generator).to(dtype)
            mine = torch.sparse_coo_tensor(indices, values, (5, 5, *dense))
            theirs, dense_sum = mine.clone(), mine.to_dense()
            dist.all_reduce(mine)
            dist.all_reduce(dense_sum)
            assert mine.is_sparse and torch.equal(mine.to_dense(), dense_sum)
            if entries and not dense:
                dist.all_reduce(theirs, group=groups["gloo"])
                assert torch.equal(mine.coalesce().indices(), theirs.coalesce().indices())
                assert torch.equal(mine.to_dense(), theirs.to_dense())
    tensor = torch.eye(3).to_sparse() * (rank + 1)
    work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
    assert work.wait() and torch.equal(tensor.to_dense(), torch.eye(3) * 1.5)
    assert work.get_future().wait()[0] is tensor


def check_invalid_sparse_tensors_are_rejected():
    rank = dist.get_rank()
    for shape in ((3, 3), (3,)):
        wrong = torch.ones(shape if rank else (2, 2)).to_sparse()
        with pytest.raises(ValueError, match=r"rank 0 of the group has shape \(2, 2\) .* rank 1 has \(3,"):
            dist.all_reduce(wrong)
    with pytest.raises(ValueError, match="takes SUM or AVG, not MAX"):
        dist.all_reduce(torch.eye(2).to_sparse(), dist.ReduceOp.MAX)
    with pytest.raises(ValueError, match=r"layout is torch.sparse_csr; call to_dense\(\)"):
        dist.all_reduce(torch.eye(2).to_sparse_csr())
    with pytest.raises(ValueError, match=r"layout is torch.sparse_coo; call to_dense\(\)"):
        dist.broadcast(torch.eye(2).to_sparse(), 0)
    dist.all_reduce(torch.ones(2))  # nothing was lost


def check_ddp_with_sparse_gradients():
    def run(group):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2))
        model = DistributedDataParallel(model, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(5):
            words = torch.randint(0, 20, (6, 3), generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
            model(words).square().sum().backward()
            assert model.module[0].weight.grad.is_sparse
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    for one, other in zip(run(groups["farandole"]), run(groups["gloo"])):
        assert torch.equal(one, other), (one, other)


def check_ddp_with_uneven_inputs():
    def run(group):
        model = distributed(group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with Join([model]):
            train(model, optimizer, steps=2 + 2 * dist.get_rank())
        return [parameter.detach().clone() for parameter in model.parameters()]

    equal_on_both(run)


def check_batch_norm_buffers_and_scheduled_types():
    def run(group):
        torch.manual_seed(3)
        model = DistributedDataParallel(
            nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4)), process_group=group
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            inputs = batch(step)[0].repeat(1, 3)[:, :18].reshape(5, 2, 3, 3)
            with torch.autocast("cpu", torch.bfloat16):
                model(inputs).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [tensor.detach().clone() for tensor in model.state_dict().values()]

    results = [run(group) for group in groups.values()]
    assert all(torch.equal(one, other) for one, other in zip(*results))


def check_zero_redundancy_optimizer():
    def run(group):
        model = distributed(group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
        result = train(model, optimizer)
        optimizer.consolidate_state_dict(to=0)
        if dist.get_rank() == 0:
            assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
        return result

    equal_on_both(run)


def mesh_of(name):
    return torch.distributed.device_mesh.DeviceMesh.from_group(groups[name], "cpu")


def sharded(name, policy=None):
    model = make_model()
    mesh = mesh_of(name)
    options = {"mp_policy": policy} if policy else {}
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(tensors):
    return [one.full_tensor() if isinstance(one, DTensor) else one for one in tensors]


def check_fsdp():
    for policy in (None, MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)):
        results = {}
        for name in groups:
            model = sharded(name, policy)
            optimizer = torch.optim.Adam(model.parameters(), 0.01)
            for step in range(3):
                inputs, targets = batch(step)
                nn.functional.mse_loss(model(inputs).float(), targets).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            results[name] = whole(model.parameters())
        assert all(torch.equal(one, other) for one, other in zip(results["farandole"], results["gloo"]))
    reference = make_model()
    assert not any(torch.equal(one, other) for one, other in zip(results["farandole"], reference.parameters()))


def check_fsdp_equals_ddp():
    model, plain = sharded("farandole"), distributed(groups["farandole"])
    one = whole(train(model, torch.optim.SGD(model.parameters(), 0.1)))
    other = train(plain, torch.optim.SGD(plain.parameters(), 0.1))
    for left, right in zip(one, other):
        assert torch.allclose(left, right, rtol=0, atol=1e-6)


def check_checkpoints():
    folder = [tempfile.mkdtemp(prefix="farandole-checkpoint-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    model = sharded("farandole")
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder[0])
    saved = whole(model.parameters())
    fresh = sharded("farandole")
    state = get_model_state_dict(fresh)
    checkpoint.load(state, checkpoint_id=folder[0])
    set_model_state_dict(fresh, state)
    assert all(torch.equal(one, other) for one, other in zip(saved, whole(fresh.parameters())))
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])


def check_dtensor():
    for name in groups:
        mesh = mesh_of(name)
        rows = torch.arange(35.0).view(7, 5)  # 7 rows do not divide
        tensor = distribute_tensor(rows, mesh, [Shard(0)])
        assert torch.equal(tensor.full_tensor(), rows)
        assert torch.equal(tensor.redistribute(mesh, [Replicate()]).to_local(), rows)
        assert torch.equal(tensor.redistribute(mesh, [Shard(1)]).full_tensor(), rows)
        product = tensor @ distribute_tensor(torch.eye(5) * 2, mesh, [Replicate()])
        assert torch.equal(product.full_tensor(), rows * 2)
        partial = DTensor.from_local(torch.full((3,), dist.get_rank() + 1.0), mesh, [Partial()])
        assert torch.equal(partial.full_tensor(), torch.full((3,), 3.0))
        assert torch.equal((tensor.sum() + 0).full_tensor(), rows.sum())
        module = distribute_module(make_model(), mesh)
        assert torch.equal(module(distribute_tensor(rows[:, :1].repeat(1, 8), mesh, [Replicate()])).to_local(),
                           make_model()(rows[:, :1].repeat(1, 8)))  # fmt: skip


def check_tensor_parallel():
    results = {}
    for name in groups:
        model = make_model()[:3]
        model[0], model[2] = nn.Linear(8, 32), nn.Linear(32, 16)
        torch.manual_seed(5)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        plain = copy.deepcopy(model)
        parallel = parallelize_module(model, mesh_of(name), {"0": ColwiseParallel(), "2": RowwiseParallel()})
        inputs = batch(1, rank=0)[0]
        parallel(inputs).sum().backward()
        plain(inputs).sum().backward()
        gradients = whole([parameter.grad for parameter in parallel.parameters()])
        for one, other in zip(gradients, plain.parameters()):
            assert torch.allclose(one, other.grad, atol=1e-5)
        results[name] = gradients
    assert all(torch.equal(one, other) for one, other in zip(*results.values()))


def check_meshes_of_one_rank():
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("one", "all"))
    tensor = distribute_tensor(torch.arange(8.0), mesh, [Replicate(), Shard(0)])
    assert torch.equal(tensor.full_tensor(), torch.arange(8.0))
    alone = mesh["one"].get_group()
    value = torch.full((2,), float(dist.get_rank()))
    dist.all_reduce(value, group=alone)
    assert torch.equal(value, torch.full((2,), float(dist.get_rank())))


def check_data_loaders_that_fork():
    """Their forked processes inherit the group and must neither use it nor end it."""
    loader = torch.utils.data.DataLoader(list(range(12)), batch_size=3, num_workers=2, multiprocessing_context="fork")
    model = distributed(groups["farandole"])
    for numbers in loader:
        model(numbers.float().view(3, 1).repeat(1, 8)).sum().backward()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    dist.barrier()


def check_end():
    dist.destroy_process_group()


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_on_two_ranks(check):
    require(sys.modules[__name__], 2, check)
