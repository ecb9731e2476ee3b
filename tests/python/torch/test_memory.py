"""Arrays, tensors and gradients in memory that all ranks of a host map. Data are small integers: sums are exact."""

import copy
import os
import sys

import farandole as fdl
import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
from farandole.torch import gradient_buckets
from launch import checks_of, require
from test_optimizer import alike, everything, mine, net, raises, train

COUNT = 200_000


def check_init():
    raises(fdl.NotInitializedError, "init", fdl.empty, 3)
    hvd.init()
    torch.set_num_threads(1)
    if os.environ.get("TEST_MOVE_TOGETHER"):
        gradient_buckets.MOVE_TOGETHER.add("cpu")


def check_arrays_are_zeros_and_can_be_reduced():
    for dtype in ("float32", "float64", "int32", "uint8"):
        array = fdl.empty((2, COUNT // 2), dtype)
        assert array.dtype == dtype and array.shape == (2, COUNT // 2) and not array.any() and array.flags.writeable
        array[:] = fdl.rank() + 1
        fdl.allreduce(array, out=array)
        assert (array == sum(range(1, fdl.size() + 1))).all()
    assert fdl.empty(5).shape == (5,) and fdl.empty(()).shape == () and fdl.empty((0, 3)).shape == (0, 3)


def check_tensors_are_zeros_and_can_be_reduced():
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        tensor = hvd.empty(100, COUNT // 100, dtype=dtype)
        assert tensor.dtype == dtype and tensor.shape == (100, COUNT // 100) and not tensor.any()
        tensor += hvd.rank() + 1
        hvd.allreduce_(tensor, op=hvd.Sum)
        assert (tensor == sum(range(1, hvd.size() + 1))).all()
    assert hvd.empty((2, 3)).shape == (2, 3) and hvd.empty(0, 3).shape == (0, 3) and hvd.empty(()).shape == ()
    assert hvd.empty(4).dtype == torch.get_default_dtype()


def check_views_keep_the_memory():
    whole = hvd.empty(COUNT)
    part = whole[1000:2000]
    part += 7
    del whole
    others = [hvd.empty(COUNT) for _ in range(3)]  # would get the same memory
    assert all(not other.any() for other in others) and (part == 7).all()


def check_a_forked_child_frees_nothing():
    tensor = hvd.empty(COUNT)
    tensor += hvd.rank()
    child = os.fork()
    if child == 0:
        del tensor
        os._exit(0)
    os.waitpid(child, 0)
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert (tensor == sum(range(hvd.size()))).all()


def wrapped(model, base, **options):
    return hvd.DistributedOptimizer(base, model.named_parameters(), gradients_in_shared_memory=True, **options)


def check_optimizer_equals_one_process_on_the_joint_batch():
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01)):
        for bucket_bytes in (300, 25 << 20):
            gradient_buckets.SHARED_BUCKET_BYTES = bucket_bytes
            for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}):
                alone, model = net(), net()
                train(alone, make(alone.parameters()), 10, everything)
                alike(train(model, wrapped(model, make(model.parameters()), **options), 10, mine), alone)
    alone, model = net(), net()
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 4, everything, passes=3)
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=3)
    alike(train(model, optimizer, 4, mine, passes=3), alone)


def linear(width=3):
    """Its gradient is the sum of its inputs' rows, exactly."""
    model = nn.Sequential(nn.Linear(width, 1, bias=False), nn.Linear(1, 1))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    return model


def check_gradients_stay_in_the_buckets():
    model = linear()
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.5), op=hvd.Sum)
    (bucket,) = optimizer._communication.buckets
    first, last = bucket.flat.data_ptr(), bucket.flat.data_ptr() + bucket.flat.nbytes
    for to_none in (True, False, True):
        (optimizer if to_none else model).zero_grad(set_to_none=to_none)
        model(torch.full((1, 3), float(hvd.rank() + 1))).sum().backward()
        optimizer.step()
        for parameter in model.parameters():
            assert first <= parameter.grad.data_ptr() < last and parameter.grad.data_ptr() % 64 == 0
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in model.parameters())


def check_dropped_gradients_move_in_at_once_where_each_copy_costs_a_launch():
    gradient_buckets.SHARED_BUCKET_BYTES = 25 << 20
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
    copies, copy_all = [], torch._foreach_copy_
    torch._foreach_copy_ = lambda targets, sources: copies.append(len(targets)) or copy_all(targets, sources)
    try:
        for to_none in (True, True, False, False):
            copies.clear()
            optimizer.zero_grad(set_to_none=to_none)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            at_once = to_none and "cpu" in gradient_buckets.MOVE_TOGETHER
            assert copies == ([8] if at_once else []), copies
    finally:
        torch._foreach_copy_ = copy_all


def check_a_gradient_that_is_replaced_before_its_bucket_starts():
    """The later value counts, also if the first one was not yet copied."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Sum)
    first, last = model[1].weight, model[0].weight  # in the order of the backward pass

    def replace(_):
        first.grad = torch.full((2, 2), 10.0 * (hvd.rank() + 1))

    last.register_hook(replace)  # before the last gradient of the bucket
    for step in range(1, 4):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        total = 10.0 * sum(range(1, hvd.size() + 1))
        assert torch.equal(first.detach(), torch.full((2, 2), 1.0 - step * total)), (step, first)
        assert torch.equal(first.grad, torch.full((2, 2), total))


def check_each_bucket_is_one_tensor():
    gradient_buckets.SHARED_BUCKET_BYTES = 25 << 20
    model = net()
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(optimizer._communication.buckets) == 1
    train(model, optimizer, 1, mine)  # in the first step ranks compare their parameters
    before = fdl.metrics()["named_operations"]
    train(model, optimizer, 5, mine)
    assert fdl.metrics()["named_operations"] - before == 10  # the bucket and the sum of gradient codes


def check_parameters_without_a_gradient_take_part():
    """Rank 0 uses both halves, the others the first."""
    halves = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)])
    for parameter in halves.parameters():
        nn.init.zeros_(parameter)
    optimizer = wrapped(halves, torch.optim.SGD(halves.parameters(), lr=1.0), op=hvd.Sum)
    for step in range(1, 3):
        optimizer.zero_grad()
        loss = halves[0](torch.ones(1, 2)).sum()
        if hvd.rank() == 0:
            loss = loss + halves[1](torch.ones(1, 2)).sum()
        loss.backward()
        optimizer.step()
        assert torch.equal(halves[0].weight.detach(), torch.full((1, 2), -float(step * hvd.size())))
        assert torch.equal(halves[1].weight.detach(), torch.full((1, 2), -float(step)))


def check_layouts_and_types_of_parameters():
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    double = nn.Linear(4, 4).double()
    for parameter in (*conv.parameters(), *double.parameters()):
        nn.init.ones_(parameter)
    model = nn.ModuleDict({"conv": conv, "of_doubles": double})
    alone = copy.deepcopy(model)
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.25), op=hvd.Average)
    reference = torch.optim.SGD(alone.parameters(), lr=0.25)
    for net_of, stepper in ((model, optimizer), (alone, reference)):
        images = torch.ones(1, 3, 5, 5).to(memory_format=torch.channels_last)
        (net_of["conv"](images).sum() + net_of["of_doubles"](torch.ones(1, 4).double()).sum()).backward()
        stepper.step()
    assert conv.weight.grad.stride() == conv.weight.stride()
    alike(model, alone, 0)


def check_sparse_gradients():
    for dense in (True, False):
        embedding = nn.Embedding(4, 2, sparse=True)
        nn.init.zeros_(embedding.weight)
        optimizer = wrapped(
            embedding, torch.optim.SGD(embedding.parameters(), lr=1.0), sparse_as_dense=dense, op=hvd.Sum
        )
        embedding(torch.tensor([hvd.rank()])).sum().backward()
        if dense:
            optimizer.step()
            expected = torch.zeros(4, 2)
            expected[: hvd.size()] -= 1.0
            assert torch.equal(embedding.weight.detach(), expected)
        else:
            raises(ValueError, "weight: .*sparse_as_dense", optimizer.step)


def check_compression_is_rejected():
    model = net()
    raises(ValueError, "compression", wrapped, model, torch.optim.SGD(model.parameters(), lr=0.1),
           compression=hvd.Compression.fp16)  # fmt: skip


def check_memory_outlives_shutdown():
    array, tensor = fdl.empty(COUNT), hvd.empty(COUNT)
    array[:], tensor[:] = 3, 4
    hvd.shutdown()
    assert (array == 3).all() and (tensor == 4).all()
    raises(fdl.NotInitializedError, "init", fdl.empty, 3)
    del array
    assert (tensor == 4).all()


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("together", ["", "1"], ids=["one by one", "together"])
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size, together):
    require(sys.modules[__name__], size, check, {"TEST_MOVE_TOGETHER": together} if together else None)
