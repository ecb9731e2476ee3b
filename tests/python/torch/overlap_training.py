"""Models and training loops for the tests of DistributedOptimizer with overlap_forward.

Gradients are rounded to multiples of 1/1024 below 1024, so that their sums are exact in any order.
"""

import farandole.torch as hvd
import torch
import torch.nn as nn


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


_kept = []  # an optimizer that is dropped completes its step


def starts_deferred(model, **options):
    """An optimizer that is in the middle of its third step. It lives until the next call."""
    optimizer = wrap(model, True, **options)
    _kept[:] = [optimizer]
    train(model, optimizer, 3)
    assert deferred(model) == (6 if hvd.size() > 1 else 0)
    return optimizer


def expected_after(steps, **options):
    model = net()
    train(model, wrap(model, False, **options), steps)
    return model


def begin():
    hvd.init()
    torch.set_num_threads(1)
