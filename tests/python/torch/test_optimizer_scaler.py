"""DistributedOptimizer with GradScaler, ShardedGradScaler and subclasses: scalers receive reduced gradients."""

import copy
import os
import sys

import farandole.torch as hvd
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from launch import checks_of, require
from shares import alike, batch, everything, mine
from test_optimizer import net
from test_optimizer_gradients import same_everywhere
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class Derived(torch.amp.GradScaler):
    """Reads gradients itself, without GradScaler's methods. Its class is defined after farandole was imported."""

    def unscale_(self, optimizer):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(1.0 / self.get_scale())
        state = self._per_optimizer_states[id(optimizer)]
        state["found_inf_per_device"] = {torch.device("cpu"): torch.zeros(1)}
        state["stage"] = torch.amp.grad_scaler.OptState.UNSCALED


class Inner(torch.amp.GradScaler):
    def _unscale_grads_(self, *arguments):
        return super()._unscale_grads_(*arguments)


def check_init():
    hvd.init()
    torch.set_num_threads(1)
    store = os.path.join(os.path.dirname(sys.argv[3]), "store")  # in the job's folder
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=hvd.rank(), world_size=hvd.size())


def scalers(**options):
    yield torch.amp.GradScaler("cpu", **options)
    yield ShardedGradScaler("cpu", **options)
    yield Inner("cpu", **options)
    yield Derived("cpu", **options)


def step_of(model, optimizer, scaler, share, number, clips, factor=1.0):
    x, y = batch(number)
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(share(x)), share(y)) * factor).backward()
    if clips:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    scaler.step(optimizer)
    scaler.update()


def check_scalers_equal_one_process():
    for make in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5),
        lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    ):
        for options in ({}, {"groups": 0}, {"gradients_in_shared_memory": True}):
            for scaler in scalers(init_scale=1024.0):
                alone, model = net(), net()
                plain = torch.amp.GradScaler("cpu", init_scale=1024.0)
                base = make(alone.parameters())
                if isinstance(scaler, (Derived, ShardedGradScaler)) and getattr(
                    base, "_step_supports_amp_scaling", False
                ):
                    continue  # these fail with fused optimizers in one process too
                optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
                for step in range(4):
                    step_of(alone, base, plain, everything, step, step % 2)
                    step_of(model, optimizer, scaler, mine, step, step % 2)
                alike(model, alone, 1e-5)
                same_everywhere(model)


def check_all_ranks_skip_a_step_together():
    for make in (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.01, fused=True)):
        for scaler in list(scalers(init_scale=8.0))[:3]:
            model = net()
            base = make(model.parameters())
            if isinstance(scaler, ShardedGradScaler) and getattr(base, "_step_supports_amp_scaling", False):
                continue
            optimizer = hvd.DistributedOptimizer(base, model.named_parameters())
            for step in range(4):
                before = copy.deepcopy(model)
                wrong = step == 1 and hvd.rank() == 1
                step_of(model, optimizer, scaler, mine, step, step > 1, float("inf") if wrong else 1.0)
                stayed = all(torch.equal(one, two) for one, two in zip(model.parameters(), before.parameters()))
                assert stayed == (step == 1)
            assert scaler.get_scale() == 4.0
            same_everywhere(model)


def check_a_rank_without_gradients_takes_part():
    """A scaler without gradients would fail: it gets those of the other ranks."""
    for scaler in list(scalers(init_scale=8.0))[:3]:
        w = nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)], op=hvd.Sum)
        for step in range(3):
            optimizer.zero_grad()
            loss = scaler.scale((w if hvd.rank() == step % 2 else torch.zeros(2, requires_grad=True)).sum())
            loss.backward()
            scaler.step(optimizer)
            scaler.update()
        assert torch.equal(w.detach(), torch.full((2,), -3.0))


def check_a_disabled_scaler_does_nothing():
    model, alone = net(), net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    base = torch.optim.SGD(alone.parameters(), lr=0.1)
    off = torch.amp.GradScaler("cpu", enabled=False)
    for step in range(3):
        step_of(model, optimizer, off, mine, step, False)
        step_of(alone, base, off, everything, step, False)
    alike(model, alone)


def check_reading_groups_reduces_nothing():
    """A program may log the learning rate on one rank."""
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    x, y = batch(0)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(model(mine(x)), mine(y)).backward()
        if hvd.rank() == 0:
            assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.state_dict()
        hvd.allreduce(torch.ones(1), name="loss")
        optimizer.step()
    same_everywhere(model)


def check_other_optimizers_are_not_affected():
    w = nn.Parameter(torch.ones(2))
    plain, scaler = torch.optim.SGD([w], lr=0.5), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(w.sum()).backward()
    scaler.unscale_(plain)
    assert torch.equal(w.grad, torch.ones(2))
    scaler.step(plain)
    assert torch.equal(w.detach(), torch.full((2,), 0.5))


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
