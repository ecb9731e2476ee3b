"""DistributedOptimizer with overlap_forward computes the same bits as without it."""

import copy
import sys

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
from launch import checks_of, require
from overlap_training import (
    begin,
    both_ways,
    data,
    deferred,
    expected_after,
    net,
    one_step,
    same_bits,
    starts_deferred,
    train,
    wrap,
)

OPTIMIZERS = {
    "SGD": dict(lr=0.25, momentum=0.9, nesterov=True, weight_decay=0.01), "Adam": dict(lr=0.01),
    "AdamW": dict(lr=0.01), "RMSprop": dict(lr=0.01), "Adagrad": dict(lr=0.1), "Adadelta": dict(lr=1.0),
    "Adamax": dict(lr=0.01), "NAdam": dict(lr=0.01), "RAdam": dict(lr=0.01), "ASGD": dict(lr=0.1),
    "Rprop": dict(lr=0.01), "Adafactor": dict(lr=0.01),
}  # fmt: skip


def check_init():
    begin()


def check_bits_of_every_optimizer():
    for name, options in OPTIMIZERS.items():
        kind = getattr(torch.optim, name, None)
        if kind is None:
            continue  # this release of PyTorch does not have it
        count = both_ways(lambda m, o: train(m, o, 7), make=lambda p, kind=kind, options=options: kind(p, **options))
        assert count == (6 * 6 if hvd.size() > 1 else 0), name  # all parameters of all steps but the first


def check_ways_to_update():
    """Implementations of one optimizer that update several parameters at once or are fused, and options as tensors."""
    ways = [
        (torch.optim.Adam, dict(lr=0.01, fused=True)), (torch.optim.SGD, dict(lr=0.25, momentum=0.5, foreach=True)),
        (torch.optim.Adam, dict(lr=0.01, foreach=True, amsgrad=True)), (torch.optim.AdamW, dict(lr=torch.tensor(0.01))),
        (torch.optim.SGD, dict(lr=0.25, maximize=True, momentum=0.5, dampening=0.25)),
    ]  # fmt: skip
    for kind, options in ways:

        def train_and_change(model, optimizer):
            count = 0
            for step in range(6):
                count += train(model, optimizer, 1, begin=step)
                lr = optimizer.param_groups[0]["lr"]
                if isinstance(lr, torch.Tensor):
                    lr.mul_(0.5)  # for the next step only
                else:
                    optimizer.param_groups[0]["lr"] = lr * 0.5
            return count

        count = both_ways(
            train_and_change, make=lambda p, kind=kind, options=options: kind(p, **copy.deepcopy(options))
        )
        assert count == (6 * 5 if hvd.size() > 1 else 0), options


def check_types_of_parameters():
    for dtype in (torch.bfloat16, torch.float64):

        class Typed(nn.Module):
            def __init__(self, dtype=dtype):
                super().__init__()
                self.own = nn.Parameter(torch.full((6, 3), 0.5, dtype=dtype))

            def forward(self, x):
                return (x.round().to(self.own.dtype) @ self.own).float()

        assert both_ways(lambda m, o: train(m, o, 4), make_model=Typed) == (3 if hvd.size() > 1 else 0)


def check_process_sets():
    """Ranks outside of the set step alone."""
    if hvd.size() == 1:
        return
    members = hvd.add_process_set(list(range(hvd.size() - 1)))
    try:
        models = [net(), net()]
        counts = [train(one, wrap(one, bool(way), process_set=members), 5) for way, one in enumerate(models)]
        assert counts == [0, 6 * 4 if members.included() and members.size() > 1 else 0]
        same_bits(*models)
    finally:
        hvd.barrier()
        hvd.remove_process_set(members)


def check_uneven_steps_and_join():
    values = []
    for overlap in (False, True):
        model = net()
        optimizer = wrap(model, overlap)
        train(model, optimizer, 3 + hvd.rank())
        hvd.join()
        optimizer.finish_step()
        values.append(model)
    same_bits(*values)


def check_error_bound_of_steps_that_are_deferred_in_part():
    """The largest error is that of one of two buckets: one is waited for in step(), or the other."""
    for overlap, layer in ((False, 0), (True, 0), (True, 2)):
        model = net(width=600)
        optimizer = wrap(model, overlap, compression=hvd.Compression.int8)
        train(model, optimizer, 2)
        optimizer.finish_step()
        held = model[layer].weight.detach() if overlap else None
        train(model, optimizer, 1, begin=2)
        assert hvd.size() == 1 or not overlap or 0 < deferred(model) < 6
        if not overlap:
            expected = optimizer.error_bound
        assert optimizer.error_bound == expected and (expected > 0 or hvd.size() == 1)
        del held


def check_large_gradients_are_reduced_in_parts():
    def wide():
        return net(width=700)  # of 1.96 MB in the middle

    models = [wide(), wide()]
    train(models[0], wrap(models[0], False), 6)
    optimizer = wrap(models[1], True)
    train(models[1], optimizer, 6)
    if hvd.size() > 1:
        updates = optimizer._communication._deferred._updates
        assert max(len(update.in_flight) for update in updates) == 2
    same_bits(*models)


def check_options_of_groups_and_schedules():
    def make(parameters):
        parameters = list(parameters)
        return torch.optim.SGD(
            [{"params": parameters[:2], "lr": 0.25}, {"params": parameters[2:], "momentum": 0.5}], lr=0.125
        )

    def train_scheduled(model, optimizer):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for step in range(6):
            one_step(model, optimizer, step)
            scheduler.step()
        optimizer.param_groups[0]["lr"] = 64.0  # for the next step only

    both_ways(train_scheduled, make=make)


def check_passes_per_step():
    def train_passes(model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            for turn in range(3):
                model(data(3 * step + turn)).square().sum().backward()
            optimizer.step()

    both_ways(train_passes, backward_passes_per_step=3)


def check_ways_to_clear_gradients():
    def keeps(model, optimizer):
        for step in range(6):
            model(data(step)).square().sum().backward()
            optimizer.step()

    def to_zero(model, optimizer):
        for step in range(6):
            optimizer.zero_grad(set_to_none=False)
            model(data(step)).square().sum().backward()
            optimizer.step()

    def of_the_model(model, optimizer):
        for step in range(6):
            model.zero_grad()
            model(data(step)).square().sum().backward()
            optimizer.step()
        return deferred(model)

    def after_the_step(model, optimizer):
        for step in range(6):
            model(data(step)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert all(parameter.grad is None for parameter in model.parameters())
        return deferred(model)

    both_ways(keeps)
    both_ways(to_zero)
    assert both_ways(of_the_model) == both_ways(after_the_step) == (6 if hvd.size() > 1 else 0)


def check_forms_of_reduction():
    for options in (
        {"compression": hvd.Compression.fp16}, {"compression": hvd.Compression.int8}, {"groups": 2},
        {"gradients_in_shared_memory": True}, {"op": hvd.Sum}, {"op": hvd.Max}, {"gradient_predivide_factor": 2.0},
    ):  # fmt: skip
        assert both_ways(lambda m, o: train(m, o, 6), **options) > 0 or hvd.size() == 1, options


def check_error_bound():
    bounds = []
    for overlap in (False, True):
        model = net()
        optimizer = wrap(model, overlap, compression=hvd.Compression.int8)
        train(model, optimizer, 3)
        bounds.append(optimizer.error_bound)
        assert not deferred(model)
    assert bounds[0] == bounds[1] and (bounds[0] > 0 or hvd.size() == 1)


def check_sparse_gradients_are_waited_for():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.table, self.out = nn.Embedding(10, 6, sparse=True), net()

        def forward(self, x):
            return self.out(self.table((x[:, 0] * 100).long().abs() % 10))

    counts = [both_ways(lambda m, o: train(m, o, 5), make_model=Words)]
    assert counts[0] == (6 * 4 if hvd.size() > 1 else 0)  # the table's update is never deferred


def check_ranks_without_a_gradient():
    """A rank that deviates needs the other ranks in its step. They must not wait elsewhere first."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = net(1), net(2), net(3)

        def forward(self, x):
            step = Branches.step
            y = self.first(x)
            if step % 3 != 1 or hvd.rank() == 0:
                y = y + self.second(x)
            if step in (2, 5) and hvd.rank() == hvd.size() - 1:
                y = y + self.third(x)
            return y

    def train_branches(model, optimizer):
        for Branches.step in range(9):
            one_step(model, optimizer, Branches.step)
            assert hvd.allreduce(torch.tensor([1]), op=hvd.Sum, name="a metric").item() == hvd.size()

    both_ways(train_branches, make_model=Branches)


def check_hooks_of_steps():
    def train_hooked(model, optimizer):
        calls = []
        for step in range(3):
            one_step(model, optimizer, step)
        handle = optimizer.register_step_pre_hook(lambda *_: calls.append([p.grad.clone() for p in model.parameters()]))
        count = train(model, optimizer, 3, begin=3)
        handle.remove()
        assert len(calls) == 3 and count == 0
        return train(model, optimizer, 2, begin=6)

    assert both_ways(train_hooked) == (12 if hvd.size() > 1 else 0)


def check_clipping_and_scaling():
    def clipped(model, optimizer):
        for step in range(5):
            optimizer.zero_grad()
            model(data(step)).square().sum().backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()

    def scaled(model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(model(data(step)).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()

    def with_closure(model, optimizer):
        for step in range(5):

            def closure(step=step):
                optimizer.zero_grad()
                loss = model(data(step)).square().sum()
                loss.backward()
                return loss

            assert optimizer.step(closure) > 0
            one_step(model, optimizer, step)

    for train_with in (clipped, scaled, with_closure):
        both_ways(train_with)


def _has_overtaken(model, optimizer):
    """Waits for the first layer's bias, and returns 1 if many others were still being reduced."""
    step = optimizer._communication._deferred
    if step is None:
        return 0
    buckets = optimizer._communication.buckets
    priorities = [optimizer._communication._priority_of(bucket) for bucket in buckets]
    assert 0 < priorities[0] < priorities[-1] and priorities == sorted(set(priorities))
    assert model.first.bias in buckets[-1].parameters
    model.first.bias.detach()
    open_parts = [not hvd.poll(handle) for update in step._updates for handle, _ in update.in_flight]
    return int(sum(open_parts) > 4)


def check_overtaking():
    """The first layer's gradient is reduced before those that arrived earlier and are larger.

    A rank may be stopped at any moment, so it is enough that this is seen once.
    """

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64 * 1024)  # 16 MiB

        def forward(self, x):
            return self.last(self.first(x)[:1])

    model = Last()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), overlap_forward=True)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        if hvd.size() == 1:
            return
        seen = torch.tensor([_has_overtaken(model, optimizer)])
        # All ranks make the same number of steps.
        if hvd.allreduce_(seen, op=hvd.Max).item():
            return
    raise AssertionError("the first layer's gradient always came last")


def check_shutdown():
    """The last check: the step takes place before the world ends."""
    model = net()
    expected = expected_after(3)
    starts_deferred(model)
    hvd.shutdown()
    assert not deferred(model)
    same_bits(model, expected)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check, deadline_s=180)
