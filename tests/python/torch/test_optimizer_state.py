"""The groups and the state of a DistributedOptimizer: sharing, loading, broadcasting and copies.

Values are compared exactly.
"""

import collections
import copy
import io
import pickle
import sys

import farandole.torch as hvd
import pytest
import torch
import torch.nn as nn
from expect import raises
from launch import checks_of, require
from shares import alike, mine
from test_optimizer import net, train


def check_init():
    hvd.init()
    torch.set_num_threads(1)


def wrap(model, base, **options):
    return hvd.DistributedOptimizer(base, model.named_parameters(), **options)


# ---- The same objects ------------------------------------------------------------------------------------------------


def check_an_early_scheduler_goes_on_after_broadcast_optimizer_state():
    model = net()
    base = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    early = torch.optim.lr_scheduler.StepLR(base, 1, 0.1)
    optimizer = wrap(model, base)
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for _ in range(3):
        train(model, optimizer, 1, mine)
        early.step()
    assert optimizer.param_groups[0]["lr"] == early.get_last_lr()[0] == 1.0 * 0.1 * 0.1 * 0.1
    weights = hvd.allgather_object([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(one, two) for rank in weights for one, two in zip(rank, weights[0]))


def check_groups_and_state_stay_the_same_objects():
    model = net()
    base = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = wrap(model, base)
    train(model, optimizer, 1, mine)
    saved = copy.deepcopy(optimizer.state_dict())
    groups, group, state = base.param_groups, base.param_groups[0], base.state
    elastic = hvd.elastic.TorchState(model, optimizer)
    for load in (lambda: optimizer.load_state_dict(saved), lambda: base.load_state_dict(saved), elastic.restore,
                 lambda: hvd.broadcast_optimizer_state(optimizer, 1), lambda: hvd.broadcast_optimizer_state(base, 1),
                 elastic.sync):  # fmt: skip
        group["lr"] = 0.25
        load()
        for one in (base, optimizer):
            assert one.param_groups is groups and one.param_groups[0] is group and one.state is state
        assert len(state) == 6 and group["lr"] in (0.25, 0.5)
    optimizer.load_state_dict(saved)
    assert group["lr"] == 0.5


def check_plain_optimizers_keep_their_groups_in_a_broadcast():
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=1.0 + hvd.rank())
    groups, group = plain.param_groups, plain.param_groups[0]
    hvd.broadcast_optimizer_state(plain, 1)
    assert plain.param_groups is groups and groups[0] is group and group["lr"] == 2.0


def check_a_state_that_cannot_be_loaded_changes_nothing():
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
    groups = optimizer.param_groups
    wrong = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=3.0).state_dict()
    raises(ValueError, "doesn't match the size", optimizer.load_state_dict, wrong)
    assert optimizer.param_groups is groups and groups[0]["lr"] == 0.5


# ---- broadcast_optimizer_state
# ----------------------------------------------------------------------------------------

Moments = collections.namedtuple("Moments", "mean square")


class Named(torch.optim.SGD):
    """Keeps its state in a named tuple."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            old = self.state[parameter].get("moments", Moments(torch.zeros_like(parameter), [torch.zeros(())]))
            self.state[parameter]["moments"] = Moments(old.mean + parameter.grad, [old.square[0] + 1.0])


def check_named_tuples_in_the_state():
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = Named([parameter], lr=1.0)
    if hvd.rank() == 0:
        parameter.grad = torch.arange(3.0)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    moments = optimizer.state[parameter]["moments"]
    assert type(moments) is Moments and type(moments.square) is list
    assert torch.equal(moments.mean, torch.arange(3.0)) and torch.equal(moments.square[0], torch.tensor(1.0))


class NotHere:
    """Cannot be pickled on the root, or cannot be unpickled elsewhere."""

    def __init__(self, where):
        self.where = where

    def __reduce__(self):
        if self.where == "pickling":
            raise TypeError("this cannot be pickled")
        return _only_on_the_root, ()


def _only_on_the_root():
    raise AttributeError("unknown here")


class Unreadable(torch.optim.SGD):
    def state_dict(self):
        raise OSError("the state cannot be read")


def check_errors_are_the_same_on_all_ranks():
    parameter = nn.Parameter(torch.zeros(3))
    for where, text in (("pickling", "rank 0.*this cannot be pickled"), ("unpickling", "rank 1.*unknown here")):
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        if hvd.rank() == 0:
            optimizer.state[parameter]["extra"] = NotHere(where)
        raises(ValueError, text, hvd.broadcast_optimizer_state, optimizer, 0)
        assert hvd.rank() == 0 or parameter.grad is None, "an error leaves gradients as they were"
    optimizer = Unreadable([parameter], lr=1.0) if hvd.rank() == 0 else torch.optim.SGD([parameter], lr=1.0)
    raises(ValueError, "rank 0.*the state cannot be read", hvd.broadcast_optimizer_state, optimizer, 0)
    groups = [{"params": [parameter]}, {"params": [nn.Parameter(torch.ones(1))]}]
    optimizer = torch.optim.SGD(groups if hvd.rank() == 0 else groups[:1], lr=1.0)
    raises(
        ValueError,
        "rank 1.*different number of parameter groups.*same groups",
        hvd.broadcast_optimizer_state,
        optimizer,
        0,
    )
    hvd.barrier()


# ---- Copies ----------------------------------------------------------------------------------------------------------


def check_deepcopy():
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), groups=2)
    train(model, optimizer, 2, mine)
    other_model, other = copy.deepcopy((model, optimizer))
    assert isinstance(other, torch.optim.SGD) and type(other) is not torch.optim.SGD
    own = {id(parameter) for parameter in other_model.parameters()}
    assert {id(parameter) for group in other.param_groups for parameter in group["params"]} == own
    assert {id(parameter) for parameter in other.state} == own
    train(other_model, other, 3, mine)
    train(model, optimizer, 3, mine)
    alike(other_model, model, 0)
    raises(TypeError, "copy.deepcopy", copy.copy, optimizer)


def check_pickle():
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), compression=hvd.Compression.bf16,
                     backward_passes_per_step=2)  # fmt: skip
    train(model, optimizer, 2, mine, passes=2)
    other_model, other = pickle.loads(pickle.dumps((model, optimizer)))
    file = io.BytesIO()
    torch.save({"model": model, "optimizer": optimizer}, file)
    file.seek(0)
    third = torch.load(file, weights_only=False)
    for one, stepper in ((model, optimizer), (other_model, other), (third["model"], third["optimizer"])):
        train(one, stepper, 3, mine, passes=2)
    alike(other_model, model, 0)
    alike(third["model"], model, 0)


def check_pickles_restore_process_sets():
    members = hvd.add_process_set(range(hvd.size() - 1))
    w = nn.Parameter(torch.zeros(1))
    if members.included():
        data = pickle.dumps(hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [("w", w)], process_set=members))
        assert pickle.loads(data)._communication.process_set is members
    hvd.remove_process_set(members)
    if hvd.rank() < hvd.size() - 1:
        raises(ValueError, r"no process set has the ranks \[0.*add_process_set", pickle.loads, data)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
