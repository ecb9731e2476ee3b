"""DistributedOptimizer: several ranks get the result of one process with all their data.

Data and weights are small integers and fractions of two, so one step is exact; many steps are compared within a
tolerance.
"""

import copy
import sys
import warnings

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from expect import raises
from launch import checks_of, require
from shares import alike, batch, everything, mine


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, optimizer, steps, share, passes=1):
    for step in range(steps):
        optimizer.zero_grad()
        for turn in range(passes):
            x, y = (share(part) for part in batch(step * passes + turn))
            F.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def check_equals_one_process_on_the_joint_batch():
    for make in (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01),
                 lambda p: torch.optim.AdamW(p, lr=0.01)):  # fmt: skip
        for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 2.0}):
            alone, model = net(), net()
            train(alone, make(alone.parameters()), 10, everything)
            optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
            alike(train(model, optimizer, 10, mine), alone)


def check_one_step_is_exact():
    """A linear model whose gradients are small multiples of powers of two, for one learning rate that is one too."""
    size = hvd.size()
    w = nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=0.5), [("w", w)], op=hvd.Sum)
    (w * torch.arange(4.0) * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    assert torch.equal(w.detach(), -0.5 * torch.arange(4.0) * sum(range(1, size + 1)))


def check_class_and_attributes():
    model = net()
    base = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters())
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    assert optimizer.param_groups[0] is base.param_groups[0]
    assert optimizer._parameter_names[model[0].weight].startswith("0.weight")
    assert optimizer.state_dict()["param_groups"] == base.state_dict()["param_groups"]
    assert "Adam" in repr(optimizer)


def check_keeps_state_and_loads_it():
    model = net()
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, base, 2, everything)
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters())
    assert optimizer.state_dict()["state"].keys() == base.state_dict()["state"].keys()
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    train(model, optimizer, 3, mine)
    after = copy.deepcopy(model)
    optimizer.load_state_dict(saved)
    model.load_state_dict(weights)
    train(model, optimizer, 3, mine)
    alike(model, after, 0)  # the same bits


def check_backward_passes_per_step():
    alone, model = net(), net()
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 5, everything, passes=3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=3
    )
    alike(train(model, optimizer, 5, mine, passes=3), alone)
    optimizer.set_backward_passes_per_step(1)
    x, y = batch(0)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    raises(AssertionError, "backward_passes_per_step", F.mse_loss(model(x), y).backward)
    optimizer.synchronize()


def check_zero_grad():
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    x, y = batch(0)
    F.mse_loss(model(x), y).backward()
    raises(AssertionError, "zero_grad", optimizer.zero_grad)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all((parameter.grad == 0).all() for parameter in model.parameters())
    optimizer.zero_grad(set_to_none=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    optimizer.zero_grad()
    train(model, optimizer, 2, mine)


def check_unused_parameters():
    """A parameter that one rank does not use counts as zeros there; one that no rank uses stays as it is."""
    rank, size = hvd.rank(), hvd.size()
    parts = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(size + 1)])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parts.parameters(), lr=1.0), parts.named_parameters(), op=hvd.Sum
    )
    for _ in range(2):
        optimizer.zero_grad()
        (parts[rank] * 0.25).sum().backward()
        optimizer.step()
    for part in parts[:size]:
        assert torch.equal(part.detach(), torch.full((2,), 0.5))
    assert torch.equal(parts[size].detach(), torch.ones(2))


def check_groups():
    for groups in (1, 3, 100, "lists"):
        alone, model = net(), net()
        train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 3, everything)
        chosen = [[model[0].weight, model[0].bias], [model[4].bias]] if groups == "lists" else groups
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=chosen
        )
        alike(train(model, optimizer, 3, mine), alone)
    raises(ValueError, "only appear once", hvd.DistributedOptimizer, torch.optim.SGD(model.parameters(), lr=0.1),
           model.named_parameters(), groups=[[model[0].weight, model[0].weight]])  # fmt: skip


def check_compression():
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model = net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.125), model.named_parameters(), compression=compression, op=hvd.Sum
        )
        before = model[0].bias.detach().clone()
        (model[0].bias * 2.0).sum().backward()
        optimizer.step()
        assert torch.equal(model[0].bias.detach(), before - 0.25 * hvd.size())
        assert model[0].bias.grad.dtype == torch.float32


def check_synchronize_then_clip():
    alone, model = net(), net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    base = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        x, y = batch(step)
        base.zero_grad()
        F.mse_loss(alone(x), y).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        base.step()
        optimizer.zero_grad()
        F.mse_loss(model(mine(x)), mine(y)).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with optimizer.skip_synchronize():
            optimizer.step()
    alike(model, alone)
    F.mse_loss(model(mine(x)), mine(y)).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()


def check_grad_scaler():
    """Neither synchronize nor skip_synchronize is needed: the scaler sees reduced gradients."""
    alone, model = net(), net()
    base = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain, scaler = (torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2))
    for step in range(4):
        x, y = batch(step)
        for one, opt, scale, share in ((alone, base, plain, everything), (model, optimizer, scaler, mine)):
            opt.zero_grad()
            scale.scale(F.mse_loss(one(share(x)), share(y))).backward()
            if step % 2:
                scale.unscale_(opt)
                nn.utils.clip_grad_norm_(one.parameters(), 0.05)
            scale.step(opt)
            scale.update()
    alike(model, alone)
    # A rank whose gradient overflows makes all ranks skip the step.
    before = copy.deepcopy(model)
    optimizer.zero_grad()
    x, y = batch(9)
    scaler.scale(F.mse_loss(model(mine(x)), mine(y)) * (float("inf") if hvd.rank() == 0 else 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    alike(model, before, 0)
    optimizer.zero_grad()
    train(model, optimizer, 1, mine)


def check_schedulers_do_not_warn():
    model = net()
    base = torch.optim.SGD(model.parameters(), lr=1.0)
    early = torch.optim.lr_scheduler.StepLR(base, 1, 0.5)  # created before wrapping, as in many programs
    optimizer = hvd.DistributedOptimizer(base, model.named_parameters())
    late = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            train(model, optimizer, 1, mine)
            early.step()
            late.step()
    assert optimizer.param_groups[0]["lr"] == 0.5**6


def check_hooks_of_step_run_once():
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    optimizer.load_state_dict(optimizer.state_dict())  # torch patches `step` here, of classes without the mark `hooked`
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer, 2, mine)
    assert calls == ["before", "after"] * 2


def check_closure():
    alone, model = net(), net()
    optimizers = [(alone, torch.optim.SGD(alone.parameters(), lr=0.1), everything)]
    optimizers.append(
        (model, hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()), mine)
    )
    for one, optimizer, share in optimizers:
        for step in range(3):
            x, y = (share(part) for part in batch(step))

            def closure(one=one, optimizer=optimizer, x=x, y=y):
                optimizer.zero_grad()
                loss = F.mse_loss(one(x), y)
                loss.backward()
                return loss

            assert optimizer.step(closure) is not None
    alike(model, alone)


def check_add_param_group():
    model, more = net(), nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Sum
    )
    hvd.broadcast_parameters(more.state_dict(), 0)
    optimizer.add_param_group({"params": more.parameters(), "lr": 0.5})
    before = more.bias.detach().clone()
    more(model(mine(batch(0)[0]))).sum().backward()
    optimizer.step()
    assert torch.allclose(more.bias.detach(), before - 0.5 * 4 * hvd.size(), atol=1e-6)


def check_two_models_with_the_same_names():
    """Both backwards run before either step, as in adversarial training."""
    pairs = []
    for seed in (1, 2):
        alone, model = net(seed), net(seed)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        pairs.append((alone, torch.optim.SGD(alone.parameters(), lr=0.1), model, optimizer))
    for step in range(3):
        x, y = batch(step)
        for alone, base, model, optimizer in pairs:
            base.zero_grad()
            optimizer.zero_grad()
            F.mse_loss(alone(x), y).backward()
            F.mse_loss(model(mine(x)), mine(y)).backward()
        for _, base, _, optimizer in reversed(pairs):
            base.step()
            optimizer.step()
    for alone, _, model, _ in pairs:
        alike(model, alone)


def check_process_set():
    members = hvd.add_process_set(range(hvd.size() - 1))
    w = nn.Parameter(torch.zeros(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("set.w", w)], op=hvd.Sum, process_set=members)
    (w * (hvd.rank() + 1.0)).sum().backward()
    optimizer.step()
    expected = sum(members.ranks) + len(members.ranks) if members.included() else hvd.rank() + 1
    assert torch.equal(w.detach(), torch.full((2,), -float(expected)))
    hvd.remove_process_set(members)


def check_sparse_gradients():
    for dense in (False, True):
        embedding = nn.Embedding(4, 2, sparse=True)
        hvd.broadcast_parameters(embedding.state_dict(), 0)
        before = embedding.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(embedding.parameters(), lr=1.0),
            embedding.named_parameters(),
            sparse_as_dense=dense,
            op=hvd.Sum,
        )
        embedding(torch.tensor([hvd.rank(), 3])).sum().backward()
        optimizer.step()
        expected = before.clone()
        expected[: hvd.size()] -= 1.0
        expected[3] -= float(hvd.size())
        assert torch.allclose(embedding.weight.detach(), expected, atol=1e-6)


def check_sparse_as_dense_returns_sparse_gradients():
    """SparseAdam refuses dense gradients. The last rank has no gradient in some steps, and has dense ones in none."""
    size, last = hvd.size(), hvd.size() - 1
    embedding = nn.Embedding(size + 3, 2, sparse=True)
    hvd.broadcast_parameters(embedding.state_dict(), 0)
    alone = copy.deepcopy(embedding)
    passes = 2
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(embedding.parameters(), lr=0.5),
        embedding.named_parameters(),
        sparse_as_dense=True,
        op=hvd.Sum,
        backward_passes_per_step=passes,
    )
    reference = torch.optim.SparseAdam(alone.parameters(), lr=0.5)
    for step in range(4):
        ranks = [rank for rank in range(size) if rank != last or step in (2, 3)]
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(passes):
            if hvd.rank() in ranks:
                embedding(torch.tensor([hvd.rank(), size])).sum().backward()
            for rank in ranks:
                alone(torch.tensor([rank, size])).sum().backward()
        optimizer.synchronize()
        gradient = embedding.weight.grad
        assert gradient.is_sparse and gradient.sparse_dim() == 1
        assert torch.equal(gradient.to_dense(), alone.weight.grad.to_dense())
        assert gradient.coalesce().indices().tolist() == [[*ranks, size]]
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.step()
        assert torch.equal(embedding.weight, alone.weight)


def check_sparse_as_dense_keeps_gradients_dense_that_are_dense_on_a_rank():
    weight = nn.Parameter(torch.zeros(4, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0), [("mixed", weight)], sparse_as_dense=True, op=hvd.Sum
    )
    for _ in range(2):
        optimizer.zero_grad()
        F.embedding(torch.tensor([1]), weight, sparse=hvd.rank() > 0).sum().backward()
        optimizer.synchronize()
        expected = torch.zeros(4, 2)
        expected[1] = float(hvd.size())
        assert not weight.grad.is_sparse and torch.equal(weight.grad, expected)


def check_bad_arguments():
    model = net()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    wrap = hvd.DistributedOptimizer
    raises(ValueError, "tuples", wrap, base, model.parameters())
    raises(ValueError, "unique", wrap, base, [("same", parameter) for parameter in model.parameters()])
    raises(ValueError, "no name", wrap, base, list(model.named_parameters())[:2])
    raises(ValueError, "must be > 0", wrap, base, model.named_parameters(), backward_passes_per_step=0)
    raises(ValueError, "predivide", wrap, base, model.named_parameters(), op=hvd.Sum, gradient_predivide_factor=2.0)
    if hvd.size() == 3:
        raises(NotImplementedError, "power of 2", wrap, base, model.named_parameters(), op=hvd.Adasum)
    raises(ValueError, "registered", wrap, base, model.named_parameters(), process_set=hvd.ProcessSet([0]))


def check_broadcast_optimizer_state():
    """Weight decay would change the weights if an optimizer were stepped to create its state."""
    model = net()
    for make in (
        lambda: torch.optim.AdamW(model.parameters(), lr=0.01 * (hvd.rank() + 1), weight_decay=0.1),
        lambda: torch.optim.SGD(model.parameters(), lr=0.01 * (hvd.rank() + 1), momentum=0.9, weight_decay=0.1),
    ):
        optimizer = make()
        if hvd.rank() == 1:  # only the root has state
            train(model, optimizer, 2, everything)
        weights = copy.deepcopy(model)
        state = copy.deepcopy(optimizer.state_dict())
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        alike(model, weights, 0)
        if hvd.rank() == 1:
            assert str(optimizer.state_dict()) == str(state)
        states = hvd.allgather_object(str(optimizer.state_dict()))
        assert states == [states[1]] * hvd.size() and optimizer.param_groups[0]["lr"] == 0.02
        assert type(optimizer.param_groups[0]["lr"]) is float
        hvd.broadcast_parameters(model.state_dict(), 1)
    raises(ValueError, "LBFGS", hvd.broadcast_optimizer_state, torch.optim.LBFGS(model.parameters()), 0)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
