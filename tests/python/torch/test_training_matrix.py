"""Training programs: 20 steps on all ranks equal 20 steps of one process on the joint batch.

The parameters of all ranks are equal bit for bit, and equal to those of one process within a tolerance that each family
of programs states. Models are of float64, so that the order of sums is no matter. Each check runs many programs.
"""

import itertools
import os
import random
import sys

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from launch import checks_of, require
from torch.optim import lr_scheduler

STEPS = 20
NEAR = 1e-9  # float64; RMSprop and Adam make small differences larger

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "SGD with Nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "Adam with AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
}
SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.7),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=STEPS + 1, cycle_momentum=False),
    "warmup": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
}
FORMS = [{}, {"groups": 0}, {"groups": 2}, {"gradients_in_shared_memory": True}, {"gradient_predivide_factor": 2.0}]


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def net(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def data(step, rows=2, dtype=torch.float64):
    """The batch of all ranks."""
    generator = torch.Generator().manual_seed(step)
    rows *= hvd.size()
    return torch.randn(rows, 6, generator=generator, dtype=dtype), torch.randn(
        rows, 3, generator=generator, dtype=dtype
    )


def mine(tensor):
    return tensor.tensor_split(hvd.size())[hvd.rank()]


def everything(tensor):
    return tensor


def forward(model, share, number):
    x, y = (share(part) for part in data(number))
    return F.mse_loss(model(x), y)


def run(program, wrap, near, *arguments):
    """`program(wrap, share, *arguments)` trains, and returns its models. Rank 0 also runs it as one process would."""
    models = program(wrap, mine, *arguments)
    weights = [parameter.detach() for model in models for parameter in model.parameters()]
    flat = torch.cat([one.flatten().double() for one in weights])
    everyones = hvd.allgather(flat.unsqueeze(0), name="weights")
    assert (everyones == flat).all(), f"ranks differ by {(everyones - flat).abs().max()}: {arguments}"
    assert flat.isfinite().all()
    if hvd.rank() == 0:
        alone = program(lambda model, base, **_: base, everything, *arguments)
        expected = torch.cat([one.detach().flatten().double() for model in alone for one in model.parameters()])
        difference = (flat - expected).abs().max().item()
        assert difference <= near, f"one process differs by {difference}: {arguments}"


def printed(count):
    print(f"{count} programs", flush=True)


def wrapper(**options):
    def wrap(model, base, **more):
        return hvd.DistributedOptimizer(base, model.named_parameters(), **options, **more)

    return wrap


# ---- Optimizers, schedulers, accumulation
# -------------------------------------------------------------------------------


def plain_program(wrap, share, make, schedule, when, passes):
    model = net()
    base = OPTIMIZERS[make](model.parameters())
    scheduler = SCHEDULERS[schedule](base) if when == "before" else None
    optimizer = wrap(model, base, backward_passes_per_step=passes)
    if when == "after":
        scheduler = SCHEDULERS[schedule](optimizer)
    if optimizer is not base:
        hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(STEPS):
        optimizer.zero_grad()
        for turn in range(passes):
            forward(model, share, step * passes + turn).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return [model]


def check_optimizers_schedulers_and_accumulation():
    rotation = itertools.cycle(FORMS)
    schedules = itertools.cycle(SCHEDULERS)
    count = 0
    for make in OPTIMIZERS:
        for when, passes in (("never", 1), ("before", 1), ("after", 3)):
            run(plain_program, wrapper(**next(rotation)), NEAR, make, next(schedules), when, passes)
            count += 1
    printed(count)


# ---- Freezing, sparse gradients, groups that are added
# -------------------------------------------------------------------


def freezing_program(wrap, share, make, schedule):
    model = net()
    optimizer = wrap(model, OPTIMIZERS[make](model.parameters()))
    for step in range(STEPS):
        if step in schedule:
            for layer, needs in zip((0, 2, 4), schedule[step]):
                model[layer].requires_grad_(bool(needs))
        optimizer.zero_grad(set_to_none=step % 4 != 3)
        forward(model, share, step).backward()
        optimizer.step()
    return [model]


def check_freezing():
    schedules = [
        {0: (0, 0, 1), 7: (0, 1, 1), 14: (1, 1, 1)},
        {0: (1, 1, 1), 5: (0, 1, 1), 12: (1, 0, 1), 13: (1, 1, 1)},
    ]
    programs = list(itertools.product(("SGD with momentum", "AdamW", "Adagrad"), schedules))
    for number, (make, schedule) in enumerate(programs):
        run(freezing_program, wrapper(**FORMS[number % len(FORMS)]), NEAR, make, schedule)
    printed(len(programs))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(12, 6, sparse=True, dtype=torch.float64)
        self.head = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, words, x):
        return self.head(x if words is None else self.embedding(words) + x)


def sparse_program(wrap, share, make, used):
    model = Words()
    base = {
        "SGD": lambda: torch.optim.SGD(model.parameters(), lr=0.1),
        "Adagrad": lambda: torch.optim.Adagrad(model.parameters()),
    }
    optimizer = wrap(model, base[make]())
    for step in range(STEPS):
        x, y = data(step)
        words = torch.randint(0, 12, (len(x),), generator=torch.Generator().manual_seed(step))
        ranks = torch.arange(hvd.size()).repeat_interleave(2)
        optimizer.zero_grad()
        uses = {"all": ranks >= 0, "some": ranks % 2 == step % 2, "at times": (ranks + step) % 3 == 0}[used]
        loss = 0.0
        for rows, taken in ((share(uses).nonzero().flatten(), True), ((~share(uses)).nonzero().flatten(), False)):
            if len(rows):
                result = model(share(words)[rows] if taken else None, share(x)[rows])
                loss = loss + F.mse_loss(result, share(y)[rows], reduction="sum") / share(x).shape[0]
        loss.backward()
        optimizer.step()
    return [model]


def check_sparse_embeddings():
    programs = list(itertools.product(("SGD", "Adagrad"), ("all", "some", "at times"), ({}, {"sparse_as_dense": True})))
    for make, used, options in programs:
        if make == "Adagrad" or not options:
            run(sparse_program, wrapper(**options), NEAR, make, used)
    printed(sum(1 for make, _, options in programs if make == "Adagrad" or not options))


def adding_program(wrap, share, make, to_original):
    model = net()
    base = OPTIMIZERS[make](model[4].parameters())
    optimizer = wrap(model, base)
    for step in range(STEPS):
        if step in (6, 12):
            layer = model[{6: 2, 12: 0}[step]]
            (base if to_original else optimizer).add_param_group({"params": layer.parameters(), "lr": 0.02})
        optimizer.zero_grad()
        model.zero_grad()
        forward(model, share, step).backward()
        optimizer.step()
    return [model]


def check_groups_that_are_added():
    programs = list(itertools.product(("SGD with momentum", "Adam"), (False, True)))
    for number, program in enumerate(programs):
        run(adding_program, wrapper(**FORMS[number % 2]), NEAR, *program)
    printed(len(programs))


# ---- Two optimizers
# ------------------------------------------------------------------------------------------------------


def adversaries_program(wrap, share, make):
    """Like generator and discriminator: a backward pass through both, and alternating steps."""
    first, second = net(1), net(2)
    second.add_module("last", nn.Linear(3, 6, dtype=torch.float64))
    one, two = (wrap(model, OPTIMIZERS[make](model.parameters())) for model in (first, second))
    for step in range(STEPS):
        x, y = (share(part) for part in data(step))
        two.zero_grad()
        F.mse_loss(second(x), x).backward()
        two.step()
        one.zero_grad()
        for parameter in second.parameters():
            parameter.requires_grad_(False)
        (F.mse_loss(first(second(x)), y)).backward()
        for parameter in second.parameters():
            parameter.requires_grad_(True)
        one.step()
    return [first, second]


def halves_program(wrap, share, make):
    """Two optimizers with the parameters of one model."""
    model = net()
    optimizers = [wrap(model, OPTIMIZERS[make](part.parameters())) for part in (model[:3], model[4:])]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        forward(model, share, step).backward()
        for optimizer in optimizers if step % 2 else reversed(optimizers):
            optimizer.step()
    return [model]


def check_two_optimizers():
    programs = list(itertools.product((adversaries_program, halves_program), ("SGD with momentum", "AdamW"), FORMS[:2]))
    for program, make, options in programs:
        run(program, wrapper(**options), NEAR, make)
    printed(len(programs))


# ---- Mixed precision
# -----------------------------------------------------------------------------------------------------


def scaled_program(wrap, share, make, clips, overflows):
    model = net()
    optimizer = wrap(model, OPTIMIZERS[make](model.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = forward(model, share, step)
        if overflows and step in (3, 11):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    return [model]


def autocast_program(wrap, share, make):
    model = net(dtype=torch.float32)
    optimizer = wrap(model, OPTIMIZERS[make](model.parameters()))
    for step in range(STEPS):
        x, y = (share(part).float() for part in data(step))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(x).float(), y)
        loss.backward()
        optimizer.step()
    return [model]


def check_mixed_precision():
    programs = list(itertools.product(("SGD with momentum", "AdamW fused"), (False, True), (False, True)))
    for number, program in enumerate(programs):
        # Scalers divide in float32, and Adam's first steps make small gradients large.
        run(scaled_program, wrapper(**FORMS[number % 4]), 1e-4, *program)
    for make in ("SGD with momentum", "Adam"):
        run(autocast_program, wrapper(), 0.05, make)  # gradients of bfloat16 have 8 bits
    printed(len(programs) + 2)


# ---- Any rank may have any gradient
# ---------------------------------------------------------------------------------------


def random_program(chance, options, shapes):
    """Each rank has a gradient for each parameter or has none, or a sparse one. Sums are of small integers: exact."""
    models = [nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes]) for _ in range(2)]
    base, alone = (torch.optim.SGD(one.parameters(), lr=0.125, momentum=0.5, weight_decay=0.25) for one in models)
    optimizer = hvd.DistributedOptimizer(base, models[0].named_parameters(), op=hvd.Sum, **options)
    share = 0.5
    for step in range(12):
        if step % 3 == 0:
            share = chance.choice((0.0, 0.2, 0.8, 1.0, 1.0))
        parts = [[chance.randint(1, 3) if chance.random() < share else 0 for _ in shapes] for _ in range(hvd.size())]
        order = chance.sample(range(len(shapes)), len(shapes)) if hvd.rank() == 0 else list(range(len(shapes)))
        optimizer.zero_grad()
        loss = sum((models[0][one] * float(parts[hvd.rank()][one])).sum() for one in order if parts[hvd.rank()][one])
        if torch.is_tensor(loss):
            loss.backward()
        optimizer.step()
        for number, parameter in enumerate(models[1]):
            total = sum(part[number] for part in parts)
            parameter.grad = torch.full_like(parameter, float(total)) if total else None
        alone.step()
        for number, (one, two) in enumerate(zip(*(model.parameters() for model in models))):
            assert torch.equal(one, two), (step, number, parts, one, two)
            assert (one.grad is None) == (two.grad is None), (step, number, parts)


def check_any_rank_may_have_any_gradient():
    seed = int(os.environ.get("FARANDOLE_TEST_SEED", 0)) or hvd.broadcast_object(
        random.SystemRandom().randrange(1, 10**9)
    )
    print(f"FARANDOLE_TEST_SEED={seed}", flush=True)
    chance = random.Random(seed)
    for number in range(20):
        # Ranks draw equal numbers. Rank 0 draws more, from a copy of the generator.
        options = [{}, {"groups": 0}, {"groups": 3}, {"gradients_in_shared_memory": True}][number % 4]
        shapes = [chance.choice(((3,), (2, 3), (5000,))) for _ in range(chance.randint(1, 9))]
        random_program(_Dice(chance.random()), options, shapes)
    printed(20)


class _Dice(random.Random):
    """sample() uses a separate generator, because only rank 0 calls it."""

    def __init__(self, seed):
        super().__init__(seed)
        self._apart = random.Random(seed)

    def sample(self, *arguments):
        return self._apart.sample(*arguments)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
