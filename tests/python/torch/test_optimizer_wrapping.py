"""Wrapping optimizers: repeatedly, several of them, differently on the ranks, and with groups that are added later."""

import gc
import sys

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
from expect import raises
from launch import checks_of, require
from shares import alike, batch, mine
from test_optimizer import net, train
from test_optimizer_gradients import FORMS, parts_of, same_everywhere, values, wrap


def check_init():
    hvd.init()
    torch.set_num_threads(1)


# ---- Again
# ------------------------------------------------------------------------------------------------------------


def check_wrapping_parameters_again_moves_them():
    for options in FORMS:
        parts = parts_of(2)
        first = wrap(parts, **options)
        second = wrap(parts, **options)
        for _ in range(3):
            sum(parts).sum().backward()
            second.step()
            second.zero_grad()
        assert values(parts) == [1.0 - 3 * hvd.size()] * 2
        raises(RuntimeError, "a later DistributedOptimizer has taken over its parameters", first.step)
        raises(RuntimeError, "DistributedOptimizer that was made last", first.synchronize)
        assert values(parts) == [1.0 - 3 * hvd.size()] * 2


def check_wrapping_in_the_middle_of_a_step_is_rejected():
    parts = parts_of(2)
    optimizer = wrap(parts)
    sum(parts).sum().backward()
    raises(ValueError, r"reducing the gradient of 0; call its step\(\) or synchronize\(\)", wrap, parts)
    optimizer.step()
    assert values(parts) == [1.0 - hvd.size()] * 2


def check_wrapping_a_wrapper_is_rejected():
    parts = parts_of(2)
    optimizer = wrap(parts)
    again = hvd.DistributedOptimizer
    raises(ValueError, "already; use it as it is, or wrap the optimizer", again, optimizer, parts.named_parameters())
    sum(parts).sum().backward()
    optimizer.step()
    assert values(parts) == [1.0 - hvd.size()] * 2


def check_remove_hooks():
    parts = parts_of(2)
    base = torch.optim.SGD(parts.parameters(), lr=1.0, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(base, parts.named_parameters(), op=hvd.Sum)
    sum(parts).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.remove_hooks()
    sum(parts).sum().backward()
    sum(parts).sum().backward()  # no hook counts passes
    raises(RuntimeError, "its hooks were removed; use the optimizer that was wrapped", optimizer.step)
    base.step()
    momentum = 0.5 * hvd.size()
    assert values(parts) == [1.0 - hvd.size() - 2.0 - momentum] * 2
    base.zero_grad()
    again = hvd.DistributedOptimizer(base, parts.named_parameters(), op=hvd.Sum)
    sum(parts).sum().backward()
    again.step()
    assert values(parts) == [1.0 - hvd.size() - 2.0 - momentum - hvd.size() - 0.5 * (2.0 + momentum)] * 2


# ---- Several
# ----------------------------------------------------------------------------------------------------------


def check_a_rank_may_make_more_optimizers_than_others():
    """Some optimizers stay, some are dropped, and one reduces the same parameters later."""
    kept = [wrap(parts_of(2)) for _ in range(3 * hvd.rank())]
    for _ in range(2 - hvd.rank() % 2):
        wrap(parts_of(2))
    parts = parts_of(2)
    for _ in range(hvd.rank()):
        wrap(parts)
    optimizer = wrap(parts)
    for _ in range(3):
        sum(parts).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
    assert values(parts) == [1.0 - 3 * hvd.size()] * 2 and len(kept) == 3 * hvd.rank()


def check_the_same_names_in_flight_together():
    """Ranks make their optimizers in different orders."""
    pairs = [(net(seed), net(seed)) for seed in (1, 2)]
    wrapped = {}
    for which in (0, 1) if hvd.rank() == 0 else (1, 0):
        model = pairs[which][1]
        wrapped[which] = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    bases = [torch.optim.SGD(alone.parameters(), lr=0.1) for alone, _ in pairs]
    for step in range(4):
        x, y = batch(step)
        for which, (alone, _) in enumerate(pairs):
            bases[which].zero_grad()
            wrapped[which].zero_grad()
            nn.functional.mse_loss(alone(x), y).backward()
        # One backward pass: the gradients of both models arrive interleaved.
        sum(nn.functional.mse_loss(model(mine(x)), mine(y)) for _, model in pairs).backward()
        for which in (0, 1):
            bases[which].step()
            wrapped[which].step()
    for alone, model in pairs:
        alike(model, alone)


def check_ranks_with_different_parameters_are_an_error_on_all():
    first = parts_of(2)
    named = [("a", first[0]), ("b" if hvd.rank() == 0 else "c", first[1])]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(first.parameters(), lr=1.0), named)
    sum(first).sum().backward()
    told = "different parameters: rank 0 of the process set has b, and rank 1 has no.*named_parameters"
    raises(ValueError, told, optimizer.step)
    more = parts_of(2 + (hvd.rank() == 1))
    optimizer = wrap(more)
    sum(more).sum().backward()
    raises(ValueError, "different parameters: rank 1 of the process set has 2, and rank 0 has no", optimizer.step)
    optimizer.remove_hooks()
    del first, more
    same = nn.Parameter(torch.ones(2))  # ranks have used the name differently often
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([same], lr=1.0), [("2", same)], op=hvd.Sum)
    same.sum().backward()
    optimizer.step()
    assert same[0].item() == 1.0 - hvd.size()


# ---- Groups that are added
# --------------------------------------------------------------------------------------------


def check_added_parameters_keep_their_given_names():
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model[0].parameters(), lr=0.1), model.named_parameters())
    train(model, optimizer, 1, mine)
    optimizer.add_param_group({"params": model[2].parameters()})
    assert optimizer._parameter_names[model[2].weight] == "2.weight"
    train(model, optimizer, 2, mine)
    same_everywhere(model[:4])
    other = net(3)
    optimizer.add_param_group({"params": other[0].parameters()})
    assert optimizer._parameter_names[other[0].bias] == "allreduce.noname.2.1"
    named = torch.optim.SGD([("w", nn.Parameter(torch.ones(1)))], lr=0.1)
    late = nn.Parameter(torch.ones(1))
    wrapped = hvd.DistributedOptimizer(named, [("first", named.param_groups[0]["params"][0])])
    wrapped.add_param_group({"params": [("late", late)]})
    assert wrapped._parameter_names[late] == "late"


def check_two_optimizers_may_have_groups_added():
    """Both number the new parameters equally."""
    wholes, wrapped = [], []
    for value in (1.0, 2.0):
        whole = parts_of(4, value=value)
        wrapped.append(wrap(whole[:2]))
        wholes.append(whole)
    for step in range(3):
        for whole, optimizer in zip(wholes, wrapped):
            if step == 1:
                optimizer.add_param_group({"params": list(whole[2:]), "lr": 0.5})
            optimizer.zero_grad()
        sum(part.sum() for whole in wholes for part in whole).backward()
        for optimizer in wrapped:
            optimizer.step()
    for value, whole in zip((1.0, 2.0), wholes):
        assert values(whole) == [value - 3 * hvd.size()] * 2 + [value - 0.5 * 2 * hvd.size()] * 2


def check_groups_may_be_added_to_the_original():
    for options in FORMS:
        parts = parts_of(3)
        base = torch.optim.SGD(parts[:2].parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(base, parts.named_parameters(), op=hvd.Sum, **options)
        for step in range(3):
            if step == 1:
                base.add_param_group({"params": [parts[2]]})
            optimizer.zero_grad()
            (sum(parts) * (hvd.rank() + 1.0)).sum().backward()
            optimizer.step()
        ranks = sum(range(1, hvd.size() + 1))
        assert values(parts) == [1.0 - 3 * ranks] * 2 + [1.0 - 2 * ranks], options


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
