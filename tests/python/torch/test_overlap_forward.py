"""DistributedOptimizer with overlap_forward: the same bits as without it, and no stale value is ever read.

Gradients are rounded to multiples of 1/1024 below 1024, so that their sums are exact in any order.
"""

import copy
import io
import os
import signal
import sys
import threading
import warnings

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from expect import raises
from launch import checks_of, launch, require

OPTIMIZERS = {
    "SGD": dict(lr=0.25, momentum=0.9, nesterov=True, weight_decay=0.01), "Adam": dict(lr=0.01),
    "AdamW": dict(lr=0.01), "RMSprop": dict(lr=0.01), "Adagrad": dict(lr=0.1), "Adadelta": dict(lr=1.0),
    "Adamax": dict(lr=0.01), "NAdam": dict(lr=0.01), "RAdam": dict(lr=0.01), "ASGD": dict(lr=0.1),
    "Rprop": dict(lr=0.01), "Adafactor": dict(lr=0.01),
}  # fmt: skip


def rounded(gradient):
    return (gradient * 1024).round().clamp(-(1 << 19), 1 << 19) / 1024


def exact(model):
    """Rounds the gradients of a model as they arrive."""
    for parameter in model.parameters():
        parameter.register_hook(rounded)
    return model


def net(seed=0, width=24):
    torch.manual_seed(seed)
    return exact(nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)))


def data(step, rank=None):
    generator = torch.Generator().manual_seed(1000 * step + (hvd.rank() if rank is None else rank))
    return torch.randn(4, 6, generator=generator)


def make_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.25, momentum=0.5)


def wrap(model, overlap, make=make_sgd, **options):
    return hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), overlap_forward=overlap,
                                    **options)  # fmt: skip


def deferred(model):
    """The number of parameters whose update has not taken place."""
    return sum(type(parameter) is not nn.Parameter for parameter in model.parameters())


def one_step(model, optimizer, step):
    optimizer.zero_grad()
    model(data(step)).square().sum().backward()
    optimizer.step()


def train(model, optimizer, steps, begin=0):
    """Returns the number of deferred parameters after the steps."""
    count = 0
    for step in range(begin, begin + steps):
        one_step(model, optimizer, step)
        count += deferred(model)
    return count


def same_bits(one, two):
    for (name, first), second in zip(one.named_parameters(), two.parameters()):
        assert torch.equal(first, second), name


def both_ways(train_with, make_model=net, make=make_sgd, **options):
    """Trains without and with the option, asserts the same bits, and returns what train_with returned with it."""
    results = []
    models = [make_model(), make_model()]
    for overlap, model in enumerate(models):
        optimizer = wrap(model, bool(overlap), make, **options)
        results.append(train_with(model, optimizer))
        optimizer.finish_step()
    same_bits(*models)
    return results[1]


def starts_deferred(model, **options):
    """An optimizer that is in the middle of its third step."""
    optimizer = wrap(model, True, **options)
    train(model, optimizer, 3)
    assert deferred(model) == (6 if hvd.size() > 1 else 0)
    return optimizer


def expected_after(steps, **options):
    model = net()
    train(model, wrap(model, False, **options), steps)
    return model


def check_init():
    hvd.init()
    torch.set_num_threads(1)


# ---- The same values ----


def check_bits_of_every_optimizer():
    for name, options in OPTIMIZERS.items():
        kind = getattr(torch.optim, name, None)
        if kind is None:
            continue  # this release of PyTorch does not have it
        count = both_ways(lambda m, o: train(m, o, 7), make=lambda p, kind=kind, options=options: kind(p, **options))
        assert count == (6 * 6 if hvd.size() > 1 else 0), name  # all parameters of all steps but the first


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


# ---- Who reads a parameter ----


def check_readers():
    buffer = io.BytesIO()
    readers = {
        "norm": lambda m: m[0].weight.norm(),
        "data": lambda m: m[0].weight.data,
        "detach": lambda m: m[0].weight.detach(),
        "numpy": lambda m: m[0].weight.detach().numpy(),
        "item": lambda m: m[0].bias[0].item(),
        "in a list": lambda m: torch.cat([m[0].weight.flatten(), m[0].bias]),
        "by keyword": lambda m: F.linear(data(9), weight=m[0].weight),
        "repr": lambda m: repr(m[0].weight),
        "pointer": lambda m: m[0].weight.data_ptr(),
        "state_dict": lambda m: m.state_dict(),
        "deepcopy": lambda m: copy.deepcopy(m),
        "save": lambda m: torch.save(m[0].weight, buffer),
        "broadcast": lambda m: hvd.broadcast_parameters(m.state_dict(), 0),
        "allreduce": lambda m: hvd.allreduce(m[0].weight.detach(), name="reader"),
        "gradient": lambda m: m[0].weight.grad.sum(),
        "numpy of the gradient": lambda m: m[0].weight.grad.numpy(),
        "no_grad": lambda m: torch.no_grad()(m)(data(9)),
        "inference_mode": lambda m: torch.inference_mode()(m)(data(9)),
        "ema": lambda m: torch.optim.swa_utils.AveragedModel(net()).update_parameters(m),
        "functional_call": lambda m: torch.func.functional_call(m, dict(m.named_parameters()), (data(9),)),
        "change": lambda m: m[0].weight.data.add_(0),
    }
    models = [net(), net()]
    optimizers = [wrap(model, bool(overlap)) for overlap, model in enumerate(models)]
    for model, optimizer in zip(models, optimizers):
        train(model, optimizer, 1)
    for step, (name, reader) in enumerate(readers.items()):
        for model, optimizer in zip(models, optimizers):
            one_step(model, optimizer, 1 + step)
        assert deferred(models[1]) == (6 if hvd.size() > 1 else 0)
        reader(models[1])
        assert type(models[1][0].weight) is nn.Parameter, name
        assert torch.equal(models[0][0].weight, models[1][0].weight), name
    optimizers[1].finish_step()
    same_bits(*models)


def check_copies_are_ordinary_parameters():
    model = net()
    starts_deferred(model)
    copied = copy.deepcopy(model)
    buffer = io.BytesIO()
    starts_deferred(net())
    torch.save(model[0].weight, buffer)
    buffer.seek(0)
    for one in (*copied.parameters(), torch.load(buffer, weights_only=True)):
        assert type(one) is nn.Parameter
    same_bits(model, copied)
    same_bits(copied, expected_after(3))


def check_gradient_of_the_last_step():
    models = [net(), net()]
    for overlap, model in enumerate(models):
        train(model, wrap(model, bool(overlap)), 3)
    for one, two in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(one.grad, two.grad)


def check_readers_in_threads():
    model, expected = net(), expected_after(3)
    starts_deferred(model)
    results = []
    threads = [threading.Thread(target=lambda: results.append(torch.no_grad()(model)(data(9)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(result, expected(data(9))) for result in results)
    same_bits(model, expected)


class Scaled(torch.autograd.Function):
    """A layer of the program that gets the parameter itself."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.T @ gradient


class Mixed(nn.Module):
    """Parameters that no forward() of their own module reads, that are shared, or that are used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.recurrent = nn.LSTM(6, 6, batch_first=True)
        self.norm = nn.LayerNorm(6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.twice = nn.Linear(6, 6)
        self.own = nn.Parameter(torch.randn(6, 6))
        self.head = nn.Linear(6, 6)
        self.head.weight = self.tied.weight
        exact(self)

    def forward(self, x):
        x = self.norm(x[None])
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.recurrent(x)[0]
        x = Scaled.apply(self.twice(self.twice(x[0])), self.own)
        return self.head(x)


def check_shared_and_indirect_parameters():
    count = both_ways(lambda m, o: train(m, o, 6), make_model=Mixed)
    assert count > 0 or hvd.size() == 1


def check_contexts_of_the_reader_do_not_matter():
    def train_within(model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
                output = model(data_on_cpu[step])
            output.square().sum().backward()
            optimizer.step()

    data_on_cpu = [data(step) for step in range(6)]
    both_ways(train_within, make=lambda p: torch.optim.Adam(p, lr=0.01))


def check_evaluation_between_steps():
    def train_and_evaluate(model, optimizer):
        losses = []
        for step in range(6):
            one_step(model, optimizer, step)
            with torch.no_grad():
                losses.append(model(data(77)).sum().item())
        return losses

    losses = [both_ways(train_and_evaluate)]
    model = net()
    assert losses[0] == train_and_evaluate(model, wrap(model, False))


# ---- The optimizer itself ----


def check_state_of_the_optimizer():
    def adam(p):
        return torch.optim.Adam(p, lr=0.01)

    def step_and_load(model, optimizer):
        train(model, optimizer, 3)
        state = copy.deepcopy(optimizer.state_dict())
        text = str(state)
        assert not deferred(model)
        train(model, optimizer, 2, begin=3)
        optimizer.load_state_dict(state)
        train(model, optimizer, 2, begin=5)
        return text

    text = both_ways(step_and_load, make=adam)
    model = net()
    assert step_and_load(model, wrap(model, False, adam)) == text


def check_new_parameters_and_copies():
    def add_and_copy(model, optimizer):
        train(model, optimizer, 3)
        last = net(7)
        optimizer.add_param_group({"params": list(last.parameters()), "lr": 0.125})
        both = nn.Sequential(model, nn.Linear(3, 6, bias=False), last)
        train(both, optimizer, 3, begin=3)
        copied, copied_optimizer = copy.deepcopy((both, optimizer))
        optimizer.finish_step()
        same_bits(both, copied)
        for parameter in copied.parameters():
            parameter.register_hook(rounded)
        train(copied, copied_optimizer, 3, begin=6)
        optimizer.remove_hooks()
        return [parameter.detach().clone() for parameter in copied.parameters()]

    values = both_ways(add_and_copy)
    model = net()
    torch.manual_seed(5)
    assert len(values) == len(add_and_copy(model, wrap(model, False)))


def check_wrapping_again():
    def wrap_again(model, optimizer):
        train(model, optimizer, 3)
        later = wrap(model, optimizer._options["overlap_forward"])
        assert not deferred(model)
        train(model, later, 3, begin=3)
        later.finish_step()
        if hvd.size() > 1:  # one rank has no hooks to lose
            raises(RuntimeError, "later DistributedOptimizer", optimizer.step)

    both_ways(wrap_again)


def check_two_optimizers():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = net(1), net(2)

        def forward(self, x):
            return self.second(F.pad(self.first(x), (0, 3)))

    models = [Pair(), Pair()]
    for overlap, model in enumerate(models):
        optimizers = [wrap(part, bool(overlap)) for part in (model.first, model.second)]
        for step in range(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            model(data(step)).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        assert deferred(model) == (12 if overlap and hvd.size() > 1 else 0)
    same_bits(*models)


def check_elastic_state():
    model = net()
    optimizer = starts_deferred(model)
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    assert not deferred(model)
    committed = copy.deepcopy(model)
    train(model, optimizer, 2, begin=3)
    state.restore()
    assert not deferred(model)
    same_bits(model, committed)
    state.reset()
    train(model, optimizer, 2, begin=3)
    state.check_host_updates()
    assert not deferred(model)
    train(model, optimizer, 1, begin=5)
    same_bits(model, expected_after(6))


# ---- Errors ----


class Global(torch.optim.SGD):
    """An optimizer whose step may depend on all gradients at once."""

    def step(self, closure=None):
        return super().step(closure)


class Alone(Global):
    steps_each_parameter_alone = True


def check_refusals():
    model = net()
    parameters = list(model.parameters())
    for bad in (torch.optim.LBFGS(parameters), Global(parameters, lr=0.1)):
        raises(ValueError, "steps_each_parameter_alone", hvd.DistributedOptimizer, bad, overlap_forward=True)
    if hvd.size() != 3:
        raises(ValueError, "leave overlap_forward out", wrap, model, True, op=hvd.Adasum)
    both_ways(lambda m, o: train(m, o, 4), make=lambda p: Alone(p, lr=0.25))


def check_code_in_cpp_is_noticed():
    torch.manual_seed(0)
    model = torch.jit.trace(nn.Linear(6, 3), data(0))
    optimizer = hvd.DistributedOptimizer(make_sgd(model.parameters()), model.named_parameters(), overlap_forward=True)
    train(model, optimizer, 1)
    optimizer.zero_grad()
    model(data(1)).square().sum().backward()
    optimizer.step()
    if hvd.size() > 1:
        raises(AssertionError, r"finish_step\(\)", model(data(2)).square().sum().backward)
    optimizer.synchronize()
    for step in range(3):
        one_step(model, optimizer, step)
        optimizer.finish_step()


def check_changed_gradients():
    model = net()
    optimizer = starts_deferred(model)
    optimizer.zero_grad()
    model(data(3)).square().sum().backward()
    model[2].weight.grad.mul_(2)
    if hvd.size() > 1:
        raises(AssertionError, "2.weight was changed between loss.backward", optimizer.step)
        assert not deferred(model)
    else:
        optimizer.step()
    train(model, optimizer, 2, begin=4)


def check_compiled_models():
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = wrap(model, True)
    train(model, optimizer, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3, 6):
            optimizer.zero_grad()
            compiled(data(step)).square().sum().backward()
            optimizer.step()
    assert not deferred(model)
    same_bits(model, expected_after(6))
    texts = [str(one.message) for one in caught if "overlap_forward has no effect" in str(one.message)]
    assert len(texts) == (1 if hvd.size() > 1 else len(texts))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


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
        step = optimizer._communication._deferred
        if step is None:
            continue
        model.first.bias.detach()
        open_parts = [not hvd.poll(handle) for update in step._updates for handle, _ in update.in_flight]
        if sum(open_parts) > 4:
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


# ---- Losses ----


def one_rank_is_killed_while_updates_are_deferred():
    hvd.init()
    torch.set_num_threads(1)
    model = Wide()
    optimizer = wrap(model, True)
    with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
        for step in range(1000):
            optimizer.zero_grad()
            model(data(step)).square().sum().backward()
            optimizer.step()
            if step == 5 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    assert not deferred(model)
    for parameter in model.parameters():
        assert parameter.detach().isfinite().all()  # reading it raises no second error


class Wide(nn.Module):
    """Its gradient of 8 MiB takes long enough that a rank dies in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 32), nn.Linear(32, 64 * 1024)

    def forward(self, x):
        return self.last(self.first(x)) * 1e-6


def test_a_rank_that_is_lost_is_named_in_the_forward_pass():
    launch(3, one_rank_is_killed_while_updates_are_deferred, codes=[0, -signal.SIGKILL, 0])
