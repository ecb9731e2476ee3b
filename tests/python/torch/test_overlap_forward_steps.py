"""DistributedOptimizer with overlap_forward: its state, copies and errors, and what happens when the world changes."""

import copy
import gc
import os
import signal
import sys
import warnings
import weakref

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from expect import raises
from farandole.torch import deferred_tensors, gradient_buckets
from launch import checks_of, launch, require
from overlap_training import (
    begin,
    both_ways,
    data,
    deferred,
    exact,
    expected_after,
    make_sgd,
    net,
    one_step,
    rounded,
    same_bits,
    starts_deferred,
    train,
    wrap,
)


def check_init():
    begin()


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


def check_state_of_the_wrapped_optimizer():
    """Both optimizers share one state, and neither shows that of the step before."""
    models = [net(), net()]
    made = [make_sgd(model.parameters()) for model in models]
    wrapped = [
        hvd.DistributedOptimizer(one, model.named_parameters(), overlap_forward=bool(way))
        for way, (one, model) in enumerate(zip(made, models))
    ]
    readers = (
        lambda own, outer: [one["momentum_buffer"].clone() for one in outer.state.values()],
        lambda own, outer: [one["momentum_buffer"].clone() for one in own.state_dict()["state"].values()],
        lambda own, outer: [one["momentum_buffer"].clone() for one in outer.state_dict()["state"].values()],
    )
    for step, reader in enumerate((readers[0], *readers, *readers)):
        for model, outer in zip(models, wrapped):
            one_step(model, outer, step)
        expected, values = (reader(*pair) for pair in zip(made, wrapped))
        assert len(values) == 6 and all(map(torch.equal, expected, values))
    for model, own, outer in zip(models, made, wrapped):
        state = copy.deepcopy(own.state_dict())
        train(model, outer, 1, begin=8)
        own.load_state_dict(state)  # after the step, not before it
        train(model, outer, 2, begin=9)
        outer.finish_step()
    same_bits(*models)


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


def check_graphs_from_before_the_step():
    """A layer whose backward pass needs no parameter can compute gradients of old values: that is refused."""
    optimizer = wrap(model := net(), True)
    train(model, optimizer, 2)
    optimizer.zero_grad()
    first, second = model(data(2)).square().sum(), model(data(3)).square().sum()
    first.backward()
    optimizer.step()
    optimizer.zero_grad()
    raises(RuntimeError, "modified by an inplace operation", second.backward)  # PyTorch's own, as without the option
    same_bits(model, expected_after(3))

    def layer():
        torch.manual_seed(6)
        return exact(nn.Linear(6, 3))

    model = layer()
    optimizer = wrap(model, True)
    for keeps_gradients in (False, True):
        train(model, optimizer, 2)
        optimizer.zero_grad()
        first, second = model(data(2)).sum(), model(data(3)).sum()
        first.backward()
        optimizer.step()
        if hvd.size() == 1:
            return
        assert deferred(model) == 2
        if not keeps_gradients:
            optimizer.zero_grad()
        text = "was changed between" if keeps_gradients else "the forward pass ran before that step"
        raises(AssertionError, text, second.backward)
        assert not deferred(model)
        if not keeps_gradients:  # the step is complete
            expected = layer()
            train(expected, other := wrap(expected, False), 2)
            other.zero_grad()
            expected(data(2)).sum().backward()
            other.step()
            same_bits(model, expected)
        optimizer.synchronize()
        optimizer.zero_grad()


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


def check_interrupts():
    """Ctrl-C in a forward pass leaves the step complete: a checkpoint that is saved then has one step."""
    model = net()
    optimizer = starts_deferred(model)
    synchronize = gradient_buckets.synchronize

    def interrupted(handle):
        gradient_buckets.synchronize = synchronize
        raise KeyboardInterrupt

    gradient_buckets.synchronize = interrupted
    try:
        if hvd.size() > 1:
            raises(KeyboardInterrupt, "", model, data(3))
            assert deferred(model) == 6
    finally:
        gradient_buckets.synchronize = synchronize
    state = copy.deepcopy(model.state_dict())
    assert all(torch.equal(state[name], one) for name, one in expected_after(3).state_dict().items())
    train(model, optimizer, 2, begin=3)
    optimizer.finish_step()
    same_bits(model, expected_after(5))


def check_an_optimizer_that_is_dropped():
    model = net()
    optimizer = wrap(model, True)
    train(model, optimizer, 3)
    del optimizer
    assert not deferred(model)
    same_bits(model, expected_after(3))


def check_memory_is_freed_with_the_model():
    for overlap in (False, True):
        model = net()
        optimizer = wrap(model, overlap)
        train(model, optimizer, 3)
        watched = [weakref.ref(parameter) for parameter in model.parameters()]
        del model, optimizer
        gc.collect()
        assert not any(one() is not None for one in watched), overlap
    assert not deferred_tensors._arrivals


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
    with pytest.raises(hvd.HorovodInternalError, match="rank 1") as caught:
        for step in range(1000):
            optimizer.zero_grad()
            model(data(step)).square().sum().backward()
            optimizer.step()
            if step == 5 and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    text, was_deferred = str(caught.value), any(one.name == "arrive" for one in caught.traceback)
    assert ("parameters keep their values from before the last step" in text) == was_deferred, text
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
