"""Horovod's contract for PyTorch beyond the plain operations: Adasum, SyncBatchNorm, optimizers of every kind, process
sets.

The checks use the package `horovod`, as programs do.
"""

import copy
import gc
import sys
import warnings

import horovod.torch as hvd
import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from expect import raises
from launch import checks_of, require
from shares import alike, batch, everything, mine

SEED = 20


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, optimizer, steps, share):
    for step in range(steps):
        x, y = (share(part) for part in batch(step))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def wrap(model, optimizer, **options):
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def same_on_all_ranks(tensor):
    assert all(torch.equal(tensor, other) for other in hvd.allgather_object(tensor))


def check_init():
    hvd.init()
    torch.set_num_threads(1)
    print(f"seed {SEED}")


# ---- Adasum ----------------------------------------------------------------------------------------------------------


def pair(a, b):
    dot, square_a, square_b = (float(np.sum(x * y)) for x, y in ((a, b), (a, a), (b, b)))
    return (1 - dot / (2 * square_a) if square_a else 1) * a + (1 - dot / (2 * square_b) if square_b else 1) * b


def adasum(vectors):
    while len(vectors) > 1:
        vectors = [pair(vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def vectors_of_all(shape, seed=SEED):
    return [np.random.default_rng([seed, rank]).standard_normal(shape) for rank in range(hvd.size())]


def check_adasum_is_its_formula():
    for dtype, tolerance in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-5),
        (torch.float16, 2e-2),
        (torch.bfloat16, 1e-1),
    ):
        for shape in ((1,), (7,), (33, 5), (50_000,), (0,)):
            all_of_them = [torch.tensor(one).to(dtype) for one in vectors_of_all(shape)]
            result = hvd.allreduce(all_of_them[hvd.rank()], op=hvd.Adasum)
            expected = torch.as_tensor(adasum([one.double().numpy() for one in all_of_them]))
            assert result.dtype == dtype and result.shape == expected.shape
            assert torch.allclose(result.double(), expected, rtol=tolerance, atol=tolerance), (dtype, shape)
            same_on_all_ranks(result)


def check_adasum_works_tensor_by_tensor_in_a_group():
    shapes = [(5,), (3, 4), (1,), (1000,)]
    all_of_them = [vectors_of_all(shape, number) for number, shape in enumerate(shapes)]
    tensors = [torch.tensor(of_all[hvd.rank()]) for of_all in all_of_them]
    for result, of_all in zip(hvd.grouped_allreduce(tensors, op=hvd.Adasum), all_of_them):
        assert torch.allclose(result, torch.as_tensor(adasum(of_all)), rtol=1e-12, atol=1e-12)
    scaled = hvd.allreduce(tensors[0], op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25)
    assert torch.allclose(scaled, 0.5 * torch.as_tensor(adasum(all_of_them[0])), rtol=1e-12, atol=1e-12)


def check_adasum_of_special_vectors_is_exact():
    rank, size = hvd.rank(), hvd.size()
    assert torch.equal(hvd.allreduce(torch.full((4,), 3.0), op=hvd.Adasum), torch.full((4,), 3.0))  # parallel: averaged
    own = torch.zeros(size)
    own[rank] = 2.0
    assert torch.equal(hvd.allreduce(own, op=hvd.Adasum), torch.full((size,), 2.0))  # orthogonal: added
    one = torch.arange(3.0) if rank == 1 else torch.zeros(3)
    assert torch.equal(hvd.allreduce(one, op=hvd.Adasum), torch.arange(3.0))  # zeros change nothing
    place = torch.full((4,), 3.0)
    handle = hvd.allreduce_async_(place, op=hvd.Adasum, name="place")
    assert hvd.synchronize(handle) is place


def check_adasum_rejects_unsupported_sets():
    raises(ValueError, "adasum", hvd.allreduce, torch.ones(2, dtype=torch.int64), op=hvd.Adasum)
    members = hvd.add_process_set([0])
    if members.included():
        raises(NotImplementedError, "process set", hvd.allreduce, torch.ones(2), op=hvd.Adasum, process_set=members)
    hvd.remove_process_set(members)
    result = hvd.allreduce(torch.ones(2, requires_grad=True), op=hvd.Adasum)
    raises(NotImplementedError, "op=Sum only", result.sum().backward)


def check_adasum_optimizer_combines_steps():
    """Each rank's own step, then Adasum of the changes."""
    size = hvd.size()
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)):
        model, alone = net(), [net() for _ in range(size)]
        optimizer = wrap(model, make(model.parameters()), op=hvd.Adasum)
        assert isinstance(optimizer, torch.optim.Optimizer)
        bases = [make(one.parameters()) for one in alone]
        for step in range(3):
            x, y = batch(step)
            optimizer.zero_grad()
            F.mse_loss(model(mine(x)), mine(y)).backward()
            optimizer.step()
            starts = [parameter.detach().clone() for parameter in alone[0].parameters()]
            for rank, (one, base) in enumerate(zip(alone, bases)):
                share = slice(rank * 4, rank * 4 + 4)
                base.zero_grad()
                F.mse_loss(one(x[share]), y[share]).backward()
                base.step()
            with torch.no_grad():
                for start, *ranks in zip(starts, *(one.parameters() for one in alone)):
                    deltas = [(parameter - start).double().numpy() for parameter in ranks]
                    for parameter in ranks:
                        parameter.copy_(start + torch.as_tensor(adasum(deltas)))
        alike(model, alone[0], 1e-5)
        same_on_all_ranks(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    raises(AssertionError, "not supported", optimizer.skip_synchronize)
    optimizer.synchronize()


def check_adasum_optimizer_with_a_scaler_skips_together():
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(3):
        before = copy.deepcopy(model)
        optimizer.zero_grad()
        x, y = batch(step)
        wrong = step == 1 and hvd.rank() == 1
        scaler.scale(F.mse_loss(model(mine(x)), mine(y)) * (float("inf") if wrong else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        stayed = all(torch.equal(one, two) for one, two in zip(model.parameters(), before.parameters()))
        assert stayed == (step == 1)
    assert scaler.get_scale() == 4.0


# ---- SyncBatchNorm ---------------------------------------------------------------------------------------------------


def check_sync_batch_norm_is_batch_norm_of_the_whole_batch():
    rank, size = hvd.rank(), hvd.size()
    kinds = [
        ((4,), nn.BatchNorm1d),
        ((4, 5), nn.BatchNorm1d),
        ((4, 3, 2), nn.BatchNorm2d),
        ((4, 2, 2, 2), nn.BatchNorm3d),
    ]
    forms = [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 1e-2, "momentum": 0.3}]
    for shape, whole in kinds:
        for options in forms:
            alone, sync = whole(4, **options).double(), hvd.SyncBatchNorm(4, **options).double()
            rows = [2 + one for one in range(size)]  # batches of different sizes
            generator = torch.Generator().manual_seed(SEED)
            data = torch.randn(sum(rows), *shape, generator=generator, dtype=torch.float64) * 3 + 5
            weights = torch.randn(data.shape, generator=generator, dtype=torch.float64)
            share = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
            for _ in range(2):
                everyones, own = data.clone().requires_grad_(), data[share].clone().requires_grad_()
                expected, result = alone(everyones), sync(own)
                assert torch.allclose(result, expected[share], atol=1e-12), (shape, options)
                alone.zero_grad(), sync.zero_grad()
                (expected * weights).sum().backward()
                (result * weights[share]).sum().backward()
                assert torch.allclose(own.grad, everyones.grad[share], atol=1e-12), (shape, options)
                for one, two in zip(sync.parameters(), alone.parameters()):
                    assert torch.allclose(hvd.allreduce(one.grad, op=hvd.Sum), two.grad, atol=1e-10)
            for name, value in alone.state_dict().items():
                assert torch.allclose(sync.state_dict()[name], value, atol=1e-12), name
            if "track_running_stats" not in options:
                assert torch.allclose(sync.eval()(own), alone.eval()(everyones)[share], atol=1e-12)


def check_sync_batch_norm_supports_empty_batches_and_small_types():
    rank = hvd.rank()
    sync = hvd.SyncBatchNorm(2)
    data = torch.randn(0 if rank == 1 else 3, 2, generator=torch.Generator().manual_seed(rank))
    result = sync(data)
    assert result.shape == data.shape
    both = torch.cat([one for one in hvd.allgather_object(result.detach())])
    assert torch.allclose(both.mean(0), torch.zeros(2), atol=1e-5)
    half = hvd.SyncBatchNorm(2)(torch.randn(4, 2).bfloat16())
    assert half.dtype == torch.bfloat16
    raises(ValueError, "at least 2D", sync, torch.ones(3))
    raises(ValueError, "channels", sync, torch.ones(3, 5))
    model = nn.Sequential(nn.Linear(6, 8), hvd.SyncBatchNorm(8), nn.Linear(8, 3))
    hvd.broadcast_parameters(model.state_dict(), 0)
    alone = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    alone.load_state_dict(model.state_dict())
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 3, everything)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    alike(train(model, optimizer, 3, mine), alone, 1e-5)


def check_sync_batch_norm_of_small_types_and_layouts():
    """As torch.nn.SyncBatchNorm: results have the input's type and layout, statistics the module's own type."""
    rank, size = hvd.rank(), hvd.size()
    rows = [0 if one == 1 else 2 + one for one in range(size)]  # and one empty batch
    share = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    generator = torch.Generator().manual_seed(SEED)
    data, weights = (torch.randn(sum(rows), 4, 3, 2, generator=generator) * 3 + 5 for _ in range(2))
    for dtype, module_dtype, near in (
        (torch.float16, torch.float32, 1e-3),
        (torch.bfloat16, torch.float32, 8e-3),
        (torch.bfloat16, torch.bfloat16, 3e-2),
        (torch.float32, torch.float32, 1e-5),
    ):
        for layout in (torch.contiguous_format, torch.channels_last):
            for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
                alone, sync = nn.BatchNorm2d(4, **options), hvd.SyncBatchNorm(4, **options).to(module_dtype)
                everyones = data.to(dtype).float().clone().requires_grad_()
                own = data[share].to(dtype).clone(memory_format=layout).requires_grad_()
                result, expected = sync(own), alone(everyones)
                assert result.dtype == dtype and result.is_contiguous(memory_format=layout)
                assert torch.allclose(result.float(), expected[share], rtol=near, atol=near), (dtype, options)
                (result.float() * weights[share]).sum().backward()
                (expected * weights).sum().backward()
                assert own.grad.dtype == dtype and own.grad.is_contiguous(memory_format=layout)
                assert torch.allclose(own.grad.float(), everyones.grad[share], rtol=near, atol=8 * near), (
                    dtype,
                    options,
                )
                for one, two in zip(sync.parameters(), alone.parameters()):
                    assert one.grad.dtype == module_dtype
                    summed = hvd.allreduce(one.grad.float(), op=hvd.Sum)
                    assert torch.allclose(summed, two.grad, rtol=8 * near, atol=100 * near), (dtype, options)
                for name, value in alone.state_dict().items():
                    mine = sync.state_dict()[name]
                    assert mine.dtype == (module_dtype if value.is_floating_point() else value.dtype)
                    assert torch.allclose(mine.to(value.dtype), value, rtol=near, atol=near), name


class ScalarsAskedFor(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts how often the host reads a number of a tensor, which would make it wait for a device."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(options or {}))


def check_sync_batch_norm_does_not_synchronize_with_the_device():
    for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}):
        sync = hvd.SyncBatchNorm(3, **options)
        data = torch.randn(4, 3, generator=torch.Generator().manual_seed(hvd.rank())).requires_grad_()
        sync(data).sum().backward()
        with ScalarsAskedFor() as asked:
            sync(data).sum().backward()
        assert hvd.size() == 1 or asked.count == 0, options
    if hvd.size() > 1:
        single = torch.ones(1 if hvd.rank() == 0 else 0, 3)
        raises(ValueError, "more than 1 value per channel", hvd.SyncBatchNorm(3), single)


# ---- Optimizers ------------------------------------------------------------------------------------------------------


def check_optimizers_of_every_form():
    """foreach and fused forms, and torch's optimizers besides SGD and Adam."""
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.05),
    ):
        alone, model = net(), net()
        train(alone, make(alone.parameters()), 3, everything)
        optimizer = wrap(model, make(model.parameters()))
        alike(train(model, optimizer, 3, mine), alone, 1e-5)


def check_grad_scaler_with_a_fused_optimizer():
    alone, model = net(), net()
    pairs = [(alone, torch.optim.Adam(alone.parameters(), lr=0.01, fused=True), everything)]
    pairs.append((model, wrap(model, torch.optim.Adam(model.parameters(), lr=0.01, fused=True)), mine))
    for one, optimizer, share in pairs:
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
        for step in range(3):
            x, y = (share(part) for part in batch(step))
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(one(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    alike(model, alone, 1e-5)


def check_lbfgs_decides_equally_on_all_ranks():
    """It decides by the loss how often it calls the closure: all ranks must get the same loss."""
    alone, model = net(), net()
    bases = [torch.optim.LBFGS(one.parameters(), max_iter=6, line_search_fn="strong_wolfe") for one in (alone, model)]
    pairs = [(alone, bases[0], everything), (model, wrap(model, bases[1]), mine)]
    for one, optimizer, share in pairs:
        for step in range(2):
            x, y = (share(part) for part in batch(step))

            def closure(one=one, optimizer=optimizer, x=x, y=y):
                optimizer.zero_grad()
                loss = F.mse_loss(one(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    alike(model, alone, 1e-3)
    same_on_all_ranks(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))


def check_only_its_own_parameters_are_reduced():
    """Two optimizers get the names of the whole model. A gradient that both reduced would be too large."""
    alone, model = net(), net()
    halves = [[one[0], one[2]] for one in (alone, model)]
    bases = [torch.optim.SGD(half.parameters(), lr=0.1) for half in halves[0]]
    wrapped = [wrap(model, torch.optim.SGD(half.parameters(), lr=0.1 / hvd.size()), op=hvd.Sum) for half in halves[1]]
    for step in range(3):
        for one, optimizers, share in ((alone, bases, everything), (model, wrapped, mine)):
            x, y = (share(part) for part in batch(step))
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.mse_loss(one(x), y).backward()
            for optimizer in optimizers:
                optimizer.step()
    alike(model, alone)


def check_bfloat16_models():
    model = net().bfloat16()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.5), op=hvd.Sum)
    before = model[2].bias.detach().clone()
    (model[2].bias * 2.0).sum().backward()
    optimizer.step()
    assert torch.equal(model[2].bias.detach(), before - torch.tensor(1.0 * hvd.size(), dtype=torch.bfloat16))


def check_compiled_models():
    alone, model = net(), net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(compiled.parameters(), lr=0.1), compiled.named_parameters())
    hvd.broadcast_parameters(compiled.state_dict(), 0)
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 3, everything)
    train(compiled, optimizer, 3, mine)
    alike(model, alone)
    averaged = torch.compile(lambda x: hvd.allreduce(x * 2.0, name="compiled", op=hvd.Sum) + 1.0, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    averaged(x).sum().backward()
    assert torch.equal(averaged(x).detach(), torch.full((3,), 2.0 * hvd.size() + 1))
    assert torch.equal(x.grad, torch.full((3,), 2.0 * hvd.size()))


def check_zero_grad_to_none_and_predivide_and_accumulation_together():
    alone, model = net(), net()
    base = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2,
                     gradient_predivide_factor=2.0, groups=2)  # fmt: skip
    for step in range(3):
        for one, opt, share in ((alone, base, everything), (model, optimizer, mine)):
            opt.zero_grad(set_to_none=step % 2 == 0)
            for turn in range(2):
                x, y = (share(part) for part in batch(2 * step + turn))
                F.mse_loss(one(x), y).backward()
            opt.step()
    alike(model, alone)


def check_schedulers_of_many_kinds_do_not_warn():
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    kinds = torch.optim.lr_scheduler
    schedulers = [kinds.LambdaLR(optimizer, lambda epoch: 0.9), kinds.OneCycleLR(optimizer, 1.0, total_steps=5),
                  kinds.ReduceLROnPlateau(optimizer)]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 1, mine)
        for scheduler in schedulers[:2]:
            scheduler.step()
        schedulers[2].step(1.0)


# ---- Process sets ----------------------------------------------------------------------------------------------------


def check_sets_are_added_and_removed_while_others_are_in_use():
    size = hvd.size()
    for turn in range(5):
        flying = [hvd.allreduce_async(torch.full((1000,), float(n)), name=f"flying.{n}", op=hvd.Sum) for n in range(20)]
        chosen = {turn % size, (turn + 1) % size} if size > 2 else {turn % size}
        members = hvd.add_process_set(chosen)
        if members.included():
            count = members.size()
            assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=members).tolist() == [float(count)] * 2
            assert hvd.grouped_allgather([torch.ones(1)] * 2, process_set=members)[1].shape == (count,)
        for n, handle in enumerate(flying):
            assert torch.equal(hvd.synchronize(handle), torch.full((1000,), float(n * size)))
        assert hvd.remove_process_set(members)
        assert members.process_set_id is None and members.included() is None


def check_sets_do_not_wait_for_each_other():
    """An operation that waits for a late rank on one set does not delay another set."""
    rank, size = hvd.rank(), hvd.size()
    ends = hvd.add_process_set([0, size - 1] if size > 2 else [0])
    if rank == 0:
        late = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
    if ends.included():
        for _ in range(10):
            hvd.allreduce(torch.ones(2), process_set=ends)
    if rank == 0:
        assert not hvd.poll(late)
        hvd.barrier()
        assert hvd.synchronize(late).tolist() == [float(size)] * 2
    else:
        hvd.barrier()
        hvd.allreduce(torch.ones(2), name="late", op=hvd.Sum)
    hvd.remove_process_set(ends)


def check_sets_accept_numpy_integers():
    members = hvd.add_process_set(np.arange(1))
    assert members.ranks == [0] and all(type(rank) is int for rank in members.ranks)
    hvd.remove_process_set(members)


# ---- Tensors ---------------------------------------------------------------------------------------------------------


def check_tensors_that_are_dropped_early():
    for n in range(20):
        hvd.allreduce_async(torch.full((50_000,), float(n)), name=f"dropped.{n}")
    gc.collect()
    torch.full((50_000,), -1.0)  # would reuse freed memory
    handles = [hvd.allreduce_async(torch.full((50_000,), float(n)), name=f"kept.{n}", op=hvd.Sum) for n in range(20)]
    gc.collect()
    for n, handle in enumerate(handles):
        assert torch.equal(hvd.synchronize(handle), torch.full((50_000,), float(n * hvd.size())))


def check_shapes_at_the_edge():
    assert hvd.allreduce(torch.tensor(3.0), op=hvd.Sum).shape == ()
    assert hvd.broadcast(torch.tensor(True), 0).item() is True
    for shape in ((0,), (3, 0, 2)):
        assert hvd.allreduce(torch.zeros(shape)).shape == shape
        assert hvd.broadcast_(torch.zeros(shape), 0).shape == shape
    assert hvd.allgather(torch.zeros(0, 2)).shape == (0, 2)
    assert hvd.alltoall(torch.zeros(0)).shape == (0,)
    raises(ValueError, "contiguous", hvd.allreduce_, torch.ones(4, 4).t())
    assert torch.equal(hvd.allreduce(torch.ones(4, 4).t().contiguous()), torch.ones(4, 4))


def check_in_place_operations_on_leaves_with_gradients():
    weight = nn.Parameter(torch.full((3,), float(hvd.rank())))
    assert hvd.broadcast_(weight, 1) is weight and weight.grad_fn is None
    assert torch.equal(weight.detach(), torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    z = y * y  # saves y
    hvd.allreduce_(y, op=hvd.Sum)
    raises(RuntimeError, "modified by an inplace operation", z.sum().backward)


def check_data_loaders_fork_after_init():
    data = torch.utils.data.TensorDataset(torch.arange(32.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        total = 0.0
        for (part,) in loader:
            total += hvd.allreduce(part.sum(), op=hvd.Sum).item()
        assert total == hvd.size() * sum(range(32))


def check_uneven_ends_with_join():
    """Ranks with fewer batches join; the divisor stays the full size; gradients of the others count."""
    w = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("join.w", w)])
    for _ in range(1 + hvd.rank()):
        optimizer.zero_grad()
        (w * float(hvd.size())).sum().backward()
        optimizer.step()
    last = hvd.join()
    assert hvd.allgather_object(last) == [last] * hvd.size()
    hvd.broadcast_parameters([("join.w", w)], root_rank=last)
    assert w.item() == -sum(hvd.size() - step for step in range(hvd.size()))


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 4])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
