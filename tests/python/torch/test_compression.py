"""Compressed reductions: NumPy's calls, those of PyTorch, DistributedOptimizer with and without error feedback, DDP."""

import copy
import math
import os
import pickle
import re
import sys
import tempfile

import farandole as fdl
import farandole.torch as hvd
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from expect import raises
from launch import checks_of, require
from torch.nn.parallel import DistributedDataParallel

FORMATS = ["int8", "int4", "float8_e4m3", "float8_e5m2", "bfloat16"]


def contribution(rank, count=5000):
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def exact_sum(size, count=5000):
    return sum(contribution(rank, count).astype(np.float64) for rank in range(size))


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def check_communicators_report_the_bound():
    size = hvd.size()
    comm = fdl.Communicator()
    mine = contribution(comm.rank)
    for name in FORMATS:
        result = comm.allreduce(mine, compression=name)
        assert (comm.error_bound > 0) == (size > 1) and comm.error_bound < 10 * size
        assert np.abs(result - exact_sum(size)).max() <= comm.error_bound, name
        request = comm.iallreduce(mine, compression=name)
        assert (request.wait() == result).all() and request.error_bound == comm.error_bound
        counts = [1000, 4000] if size == 2 else [5000]
        part = comm.reduce_scatter(mine, counts=counts, compression=name)
        start = sum(counts[: comm.rank])
        assert np.abs(part - exact_sum(size)[start : start + part.size]).max() <= comm.error_bound, name
        gathered = comm.allgather(mine, compression=name)
        expected = np.stack([contribution(rank) for rank in range(size)])
        assert np.abs(gathered - expected).max() <= comm.error_bound, name
    mine[17] = math.nan
    assert np.isnan(comm.allreduce(mine, compression="int8")[17])
    assert comm.error_bound == (math.inf if size > 1 else 0)  # one rank sends nothing


def check_named_operations_report_the_bound():
    size, rank = hvd.size(), hvd.rank()
    for name in FORMATS:
        handle = fdl.allreduce_async(contribution(rank), compression=name)
        assert np.abs(handle.wait() - exact_sum(size)).max() <= handle.error_bound
        assert (fdl.allreduce(contribution(rank), compression=name) == handle.wait()).all()
    handle = fdl.grouped_allreduce_async([contribution(rank), contribution(rank, 7)], compression="int8")
    results = handle.wait()
    assert np.abs(results[0] - exact_sum(size)).max() <= handle.error_bound
    assert np.abs(results[1] - exact_sum(size, 7)).max() <= handle.error_bound
    rows = fdl.allgather(contribution(rank).reshape(50, 100), compression="int8")
    assert rows.shape == (50 * size, 100)
    part = fdl.reducescatter(contribution(rank).reshape(50, 100), compression="int8")
    assert part.shape == (50 // size, 100)


def check_wrong_arguments_are_refused():
    comm = fdl.Communicator()
    wide = np.ones(3)
    raises(fdl.InvalidArgumentError, "'int3' is not a compression", lambda: comm.allreduce(wide, compression="int3"))
    text = re.escape(
        f"compression int8 takes dtype float32, not float64; convert the input or leave it out (rank {hvd.rank()})"
    )
    raises(fdl.InvalidArgumentError, text, lambda: comm.allreduce(wide, compression="int8"))
    raises(fdl.InvalidArgumentError, "takes op sum or average, not max",
           lambda: fdl.allreduce(wide.astype("float32"), fdl.MAX, compression="int8"))  # fmt: skip
    raises(ValueError, "op=Average and op=Sum", lambda: optimizer_of(net(), hvd.Compression.int8, op=hvd.Min))
    feedback = hvd.Compression.int8.with_feedback()
    raises(ValueError, "excludes gradient_predivide_factor",
           lambda: optimizer_of(net(), feedback, gradient_predivide_factor=2.0))  # fmt: skip
    raises(ValueError, "leave it out here",
           lambda: hvd.reducescatter(torch.ones(4), compression=hvd.Compression.int8))  # fmt: skip
    raises(ValueError, "give a name or a function", lambda: hvd.Compression.int8.excluding(7))
    if hvd.size() == 2:
        one = "int8" if hvd.rank() == 0 else "int4"
        raises(fdl.MismatchError, "has compression int4; all ranks must submit the same compression",
               lambda: fdl.allreduce(np.ones(3, "float32"), name="differs", compression=one))  # fmt: skip


def check_allreduce_of_tensors_is_differentiable():
    size = hvd.size()
    x = torch.tensor(contribution(hvd.rank()), requires_grad=True)
    y = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.int8)
    assert np.abs(y.detach().numpy() - exact_sum(size)).max() < 0.1 * size
    (127 * y).sum().backward()  # exact in int8
    assert torch.equal(x.grad, torch.full_like(x, 127 * size))
    first, second = hvd.grouped_allreduce(
        [torch.full((5,), 127.0), torch.arange(3)], op=hvd.Sum, compression=hvd.Compression.int8
    )
    assert torch.equal(first, torch.full((5,), 127.0 * size)) and torch.equal(second, torch.arange(3) * size)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def optimizer_of(model, compression, **options):
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(base, model.named_parameters(), compression=compression, **options)


def one_step(model, optimizer, seed):
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
    F.mse_loss(model(x), y).backward()
    optimizer.step()


def check_optimizer_reduces_within_its_bound():
    for name in FORMATS:
        plain, model = net(), net()
        exact = optimizer_of(plain, hvd.Compression.none)
        optimizer = optimizer_of(model, getattr(hvd.Compression, name))
        for step in range(6):
            plain.load_state_dict(model.state_dict())
            one_step(plain, exact, 100 * step + hvd.rank())
            one_step(model, optimizer, 100 * step + hvd.rank())
            if hvd.size() > 1:
                assert optimizer.error_bound > 0
            for one, other in zip(plain.parameters(), model.parameters()):
                assert (one.grad - other.grad).abs().max() <= optimizer.error_bound + 1e-6, (name, step)
        # All ranks have the same bits.
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        gathered = hvd.allgather(flat.reshape(1, -1))
        assert all(torch.equal(gathered[0], one) for one in gathered)


def check_excluded_parameters_are_exact():
    for excluded in ("*.bias", lambda name, parameter: parameter.dim() == 1):
        plain, model = net(), net()
        exact = optimizer_of(plain, hvd.Compression.none)
        optimizer = optimizer_of(model, hvd.Compression.int4.excluding(excluded))
        for step in range(3):
            plain.load_state_dict(model.state_dict())
            one_step(plain, exact, 100 * step + hvd.rank())
            one_step(model, optimizer, 100 * step + hvd.rank())
            for (name, one), other in zip(plain.named_parameters(), model.parameters()):
                if name.endswith("bias"):
                    assert torch.equal(one.grad, other.grad), name
        if hvd.size() > 1:
            assert not torch.equal(plain[0].weight.grad, model[0].weight.grad)


def check_feedback_loses_nothing_for_good():
    """A constant gradient far below the step of int4 reaches the parameter in time with feedback, and never without."""
    if hvd.size() == 1:
        return
    for feedback in (False, True):
        w = nn.Parameter(torch.zeros(64))
        compression = hvd.Compression.int4.with_feedback() if feedback else hvd.Compression.int4
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)], compression=compression)
        gradient = torch.full((64,), 0.01)
        gradient[0] = 7.0
        for _ in range(200):
            optimizer.zero_grad()
            (w * gradient).sum().backward()
            optimizer.step()
        moved = -w.detach()[1]
        assert abs(moved - 2.0) < 1.0 if feedback else moved == 0, (feedback, moved)


def check_feedback_survives_gradients_that_are_not_finite():
    w = nn.Parameter(torch.zeros(200))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([w], lr=1.0), [("w", w)], compression=hvd.Compression.int8.with_feedback()
    )
    for step in range(4):
        optimizer.zero_grad()
        (w * (math.inf if step == 1 else 1.0)).sum().backward()
        optimizer.synchronize()
        if step == 1 and hvd.size() > 1:
            assert not torch.isfinite(w.grad).any() and optimizer.error_bound == math.inf
        if step != 1:
            assert (w.grad - 1).abs().max() <= 0.02, step
        with torch.no_grad():
            w.zero_()


def check_compressions_are_copied_and_pickled():
    compression = hvd.Compression.int8.with_feedback().excluding("*.bias")
    for again in (copy.deepcopy(compression), pickle.loads(pickle.dumps(compression))):
        assert repr(again) == "Compression.int8.with_feedback()" and again.excluded == ("*.bias",)
    optimizer = optimizer_of(net(), compression)
    assert copy.deepcopy(optimizer)._communication.compression.format == "int8"


def check_ddp_with_the_hook():
    hvd.shutdown()
    store = os.path.join(tempfile.gettempdir(), f"farandole-compression-{os.environ['FARANDOLE_JOB_KEY']}")
    rank, size = int(os.environ["FARANDOLE_RANK"]), int(os.environ["FARANDOLE_SIZE"])
    for name in [name for name in os.environ if name.startswith("FARANDOLE_")]:
        del os.environ[name]
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size)
    raises(ValueError, "without excluding", lambda: hvd.compression_hook(hvd.Compression.int8.excluding("x")))
    raises(ValueError, "give Compression.int8", lambda: hvd.compression_hook(hvd.Compression.fp16))
    for compression in (hvd.Compression.int8, hvd.Compression.int8.with_feedback()):
        plain, model = DistributedDataParallel(net()), DistributedDataParallel(net())
        model.register_comm_hook(None, hvd.compression_hook(compression))
        for step in range(4):
            generator = torch.Generator().manual_seed(100 * step + rank)
            x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
            for one in (plain, model):
                one.zero_grad()
                F.mse_loss(one(x), y).backward()
            for one, other in zip(plain.parameters(), model.parameters()):
                assert (one.grad - other.grad).abs().max() < 0.03
            if size > 1:
                assert not torch.equal(plain.module[0].weight.grad, model.module[0].weight.grad)
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_compression(check, size):
    require(sys.modules[__name__], size, check)
