"""Which gradients a DistributedOptimizer reduces: of frozen parameters, of parameters that some ranks do not use,
sparse ones, ones that are erased, ones of other types and layouts.

Gradients are small multiples of powers of two, so that all sums are exact.
"""

import copy
import sys

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
from expect import raises
from launch import checks_of, require
from shares import mine
from test_optimizer import net, train

FORMS = ({}, {"groups": 0}, {"groups": 1}, {"gradients_in_shared_memory": True})  # forms of buckets


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def parts_of(count, width=2, value=1.0):
    return nn.ParameterList([nn.Parameter(torch.full((width,), value)) for _ in range(count)])


def wrap(model, lr=1.0, op=hvd.Sum, momentum=0.0, weight_decay=0.0, **options):
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
    return hvd.DistributedOptimizer(base, model.named_parameters(), op=op, **options)


def values(model):
    return [parameter.detach()[0].item() for parameter in model.parameters()]


def same_everywhere(model):
    of_ranks = hvd.allgather_object([parameter.detach() for parameter in model.parameters()])
    for others in of_ranks:
        assert all(torch.equal(one, two) for one, two in zip(others, model.parameters()))


# ---- Frozen and unused parameters
# -------------------------------------------------------------------------------------


def check_parameters_that_are_unfrozen_later_are_reduced():
    for options in FORMS:
        parts = parts_of(2)
        parts[1].requires_grad_(False)
        optimizer = wrap(parts, **options)
        for step in range(4):
            parts[1].requires_grad_(step in (1, 2))
            optimizer.zero_grad()
            ((parts[0] + parts[1]) * (0.25 * (hvd.rank() + 1))).sum().backward()
            optimizer.step()
            assert step in (1, 2) or parts[1].grad is None
        ranks = 0.25 * sum(range(1, hvd.size() + 1))
        assert values(parts) == [1.0 - 4 * ranks, 1.0 - 2 * ranks], options


def check_a_rank_may_unfreeze_alone():
    for options in FORMS:
        parts = parts_of(3)
        optimizer = wrap(parts, **options)
        for step in range(3):
            parts[1].requires_grad_(hvd.rank() == step % hvd.size())
            optimizer.zero_grad()
            (sum(parts) * 0.5).sum().backward()
            optimizer.step()
        assert values(parts) == [1.0 - 1.5 * hvd.size(), 1.0 - 1.5, 1.0 - 1.5 * hvd.size()], options


def check_unused_parameters_keep_no_gradient():
    """Weight decay and momentum would move it if it had zeros."""
    for options in FORMS:
        parts = parts_of(3)
        optimizer = wrap(parts, momentum=0.5, weight_decay=0.25, **options)
        for step in range(4):
            optimizer.zero_grad()
            used = [0, 2] if step == 2 else [0, 1] if hvd.rank() == 0 and step > 0 else [0]
            sum(parts[one] for one in used).sum().backward()
            optimizer.step()
            has = [parameter.grad is not None for parameter in parts]
            assert has == [True, step in (1, 3), step == 2], (options, step, has)
        alone = parts_of(3)
        base = torch.optim.SGD(alone.parameters(), lr=1.0, momentum=0.5, weight_decay=0.25)
        for step in range(4):
            counts = [hvd.size(), [0, 1, 0, 1][step], [0, 0, hvd.size(), 0][step]]
            for parameter, count in zip(alone, counts):
                parameter.grad = torch.full((2,), float(count)) if count else None
            base.step()
        assert values(parts) == values(alone), options


def check_a_gradient_that_the_program_sets_is_reduced():
    """No hook reports it."""
    parts = parts_of(3)
    optimizer = wrap(parts)
    for step in range(3):
        optimizer.zero_grad()
        parts[0].sum().backward()
        if step > 0 and hvd.rank() == 1:
            parts[2].grad = torch.full((2,), 0.5)
        optimizer.step()
    assert values(parts) == [1.0 - 3 * hvd.size(), 1.0, 1.0 - 2 * 0.5]


def check_a_rank_without_any_gradient():
    for options in FORMS:
        parts = parts_of(2)
        optimizer = wrap(parts, **options)
        for step in range(4):
            optimizer.zero_grad()
            if hvd.rank() != step % 2:
                sum(parts).sum().backward()
            optimizer.step()
        idle = [2, 2] + [0] * (hvd.size() - 2)
        assert values(parts) == [1.0 - sum(4 - one for one in idle)] * 2


def check_no_rank_has_any_gradient():
    parts = parts_of(2)
    optimizer = wrap(parts, momentum=0.5, weight_decay=0.5)
    for _ in range(3):
        optimizer.step()
        optimizer.zero_grad()
    assert values(parts) == [1.0, 1.0]


# ---- Sparse gradients
# -------------------------------------------------------------------------------------------------


def check_a_sparse_gradient_that_some_ranks_have():
    for size in ((4, 2), (4, 1)):
        for options in ({}, {"groups": 0}):
            embedding, other = nn.Embedding(*size, sparse=True), parts_of(1)
            nn.init.zeros_(embedding.weight)
            model = nn.ModuleDict({"embedding": embedding, "other": other})
            optimizer = wrap(model, **options)
            for step in range(5):
                optimizer.zero_grad()
                loss = other[0].sum()
                if step != 2 and hvd.rank() != step % 2:
                    loss = loss + embedding(torch.tensor([hvd.rank(), 3])).sum()
                loss.backward()
                optimizer.step()
                assert (embedding.weight.grad is None) == (step == 2)
                assert step == 2 or embedding.weight.grad.is_sparse
            expected = torch.zeros(size)
            for rank in range(hvd.size()):
                steps = sum(1 for step in range(5) if step != 2 and rank != step % 2)
                expected[rank] -= steps
                expected[3] -= steps
            assert torch.equal(embedding.weight.detach(), expected)


def check_a_gradient_that_is_sparse_on_some_ranks_and_dense_on_others():
    """It becomes dense, whatever it was before."""
    for options in ({}, {"groups": 0}, {"groups": 1}):
        for before in ("nothing", "dense", "sparse"):
            parts = parts_of(2, 4)
            optimizer = wrap(parts, **options)
            for step, kind in enumerate([before, "mixed", "mixed", "dense"]):
                optimizer.zero_grad()
                parts[1].sum().backward()
                if kind == "dense" or (kind == "mixed" and hvd.rank() != step % 2):
                    parts[0].sum().backward()
                elif kind == "mixed" or (kind == "sparse" and not options.get("groups")):
                    (torch.gather(parts[0], 0, torch.tensor([1, 3]), sparse_grad=True) * 0.5).sum().backward()
                optimizer.step()
                assert kind in ("nothing", "sparse") or not parts[0].grad.is_sparse
            size = hvd.size()
            steps = {
                "nothing": (0, 0),
                "dense": (size, size),
                "sparse": (0, 0.0 if options.get("groups") else 0.5 * size),
            }
            twice = (
                2 * (size - 1),
                2 * (size - 1 + 0.5),
            )  # an element outside of the sparse gradient, and one inside
            expected = [1.0 - size - part - more for part, more in zip(twice, steps[before])]
            assert parts[0].tolist() == expected * 2 and values(parts)[1] == 1.0 - 4 * size, (options, before)


def check_a_sparse_gradient_in_a_group_is_rejected_on_all_ranks():
    embedding, other = nn.Embedding(4, 2, sparse=True), parts_of(1)
    model = nn.ModuleDict({"embedding": embedding, "other": other})
    optimizer = wrap(model, groups=1)
    loss = other[0].sum()
    if hvd.rank() == 0:
        loss = loss + embedding(torch.tensor([1])).sum()
    loss.backward()
    raises(ValueError, "embedding.weight: sparse gradients cannot be in groups", optimizer.step)
    optimizer = wrap(embedding, op=hvd.Max)
    if hvd.rank() == 0:
        embedding(torch.tensor([1])).sum().backward()
    raises(ValueError, "weight: sparse gradients take op=Average or op=Sum", optimizer.step)


def check_a_gradient_may_become_sparse():
    """The parameter is in a bucket that was chosen by size."""
    parts = parts_of(3, 4)
    optimizer = wrap(parts)
    for step in range(4):
        optimizer.zero_grad()
        (parts[0] + parts[2]).sum().backward()
        if step == 0:
            parts[1].grad = torch.ones(4)
        elif hvd.rank() == 1:
            parts[1].grad = torch.sparse_coo_tensor([[2]], [0.5], (4,))
        optimizer.step()
    assert values(parts) == [1.0 - 4 * hvd.size(), 1.0 - hvd.size(), 1.0 - 4 * hvd.size()]
    assert parts[1][2].item() == 1.0 - hvd.size() - 1.5


# ---- Passes, and gradients that are erased
# ------------------------------------------------------------------------------


def check_zero_grad_forgets_passes():
    for options in FORMS:
        parts = parts_of(2)
        optimizer = wrap(parts, backward_passes_per_step=2, **options)
        for _ in range(3):
            sum(parts).sum().backward()
            optimizer.zero_grad()  # this batch is skipped
            for _ in range(2):
                (sum(parts) * 0.5).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert values(parts) == [1.0 - 3 * hvd.size()] * 2


def check_a_gradient_that_is_changed_while_it_is_reduced_is_an_error():
    changes = (lambda parts: parts.zero_grad(set_to_none=True), lambda parts: parts.zero_grad(set_to_none=False),
               lambda parts: nn.utils.clip_grad_norm_(parts.parameters(), 0.1))  # fmt: skip
    for options in (*FORMS, {"compression": hvd.Compression.bf16}):
        for change in changes:
            parts = parts_of(2)
            optimizer = wrap(parts, **options)
            for _ in range(2):
                sum(parts).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            sum(parts).sum().backward()
            change(parts)
            before = values(parts)
            raises(AssertionError, "gradient of [01].*changed.*synchronize", optimizer.step)
            assert values(parts) == before, "a step that fails moves nothing"
            optimizer.zero_grad()
            sum(parts).sum().backward()
            optimizer.step()
            assert values(parts) == [one - hvd.size() for one in before]


def check_a_rank_that_erases_its_gradients_does_not_block_others():
    parts = parts_of(2)
    optimizer = wrap(parts)
    for step in range(3):
        sum(parts).sum().backward()
        if hvd.rank() == 0 and step == 2:
            parts.zero_grad()
            raises(AssertionError, "changed", optimizer.step)
        else:
            optimizer.step()
            optimizer.zero_grad()
    hvd.barrier()


# ---- Types and layouts
# --------------------------------------------------------------------------------------------------


def check_types_may_change_after_wrapping():
    for options in FORMS:
        model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1))
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = wrap(model, lr=0.25, **options)
        for step in range(6):
            if step == 2:
                model.double()
            if step == 4:
                model[1].float()
            optimizer.zero_grad()
            for parameter in model.parameters():
                (parameter * 0.5).sum().backward()
            optimizer.step()
            assert all(parameter.grad.dtype == parameter.dtype for parameter in model.parameters())
        assert all(torch.equal(one, torch.full_like(one, 1.0 - 6 * 0.125 * hvd.size())) for one in model.parameters())


class Copies(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts copies of tensors."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.count += function in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default)
        return function(*arguments, **(options or {}))


def numbered(shape):
    """Different small numbers, so that permuted elements would show."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def check_channels_last_gradients_are_not_copied():
    for shape in ((4, 3, 2, 2), (3, 3, 3, 3)):
        for options in FORMS:
            weight = nn.Parameter(torch.zeros(shape).to(memory_format=torch.channels_last))
            model = nn.ParameterList([weight, nn.Parameter(torch.zeros(5, 4).t())])
            optimizer = wrap(model, **options)
            alone = copy.deepcopy(model)
            for step in range(3):
                optimizer.zero_grad()
                alone.zero_grad()
                counts = []
                for parts, finish in ((model, optimizer.synchronize), (alone, lambda: None)):
                    with Copies() as copies:
                        ((parts[0] * numbered(shape)).sum() + (parts[1] * numbered((4, 5))).sum()).backward()
                        finish()
                    counts.append(copies.count)
                # In shared memory each gradient is copied into its bucket once, when it is new.
                more = 2 if options.get("gradients_in_shared_memory") else 0
                assert step == 0 or counts[0] == counts[1] + more, (options, step, counts)
                with optimizer.skip_synchronize():
                    optimizer.step()
            assert torch.equal(weight.detach(), -3 * hvd.size() * numbered(shape))
            assert torch.equal(model[1].detach(), -3 * hvd.size() * numbered((4, 5)))


def check_ranks_may_hold_a_parameter_in_different_layouts():
    for shape in ((4, 3, 2, 2), (3, 3, 3, 3)):
        for options in FORMS:
            layout = torch.channels_last if hvd.rank() == 1 else torch.contiguous_format
            weight = nn.Parameter(torch.zeros(shape).to(memory_format=layout))
            optimizer = wrap(nn.ParameterList([weight, nn.Parameter(torch.zeros(3))]), **options)
            for step in range(3):
                optimizer.zero_grad()
                (weight * numbered(shape)).sum().backward()
                optimizer.step()
                if step == 1:
                    weight.data = weight.data.to(memory_format=torch.channels_last)
            assert torch.equal(weight.detach(), -3 * hvd.size() * numbered(shape)), options


def check_layouts_may_change_after_wrapping():
    for options in FORMS:
        weight = nn.Parameter(torch.zeros(4, 3, 2, 2))
        optimizer = wrap(nn.ParameterList([weight]), **options)
        for _ in range(3):
            optimizer.zero_grad()
            (weight * numbered((4, 3, 2, 2))).sum().backward()
            optimizer.step()
            weight.data = weight.data.to(memory_format=torch.channels_last)
        assert torch.equal(weight.detach(), -3 * hvd.size() * numbered((4, 3, 2, 2)))


# ---- Adasum
# -------------------------------------------------------------------------------------------------------------


def check_adasum_combines_parameters_that_are_unfrozen_later():
    if hvd.size() & (hvd.size() - 1):
        return
    model = net()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
    )
    for step in range(3):
        model[0].requires_grad_(step > 0)
        train(model, optimizer, 1, mine)
        same_everywhere(model)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
