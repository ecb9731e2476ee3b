"""States of elastic jobs: what is state, and that saving, restoring and synchronising keep objects connected."""

import copy
import threading

import farandole
import farandole.torch as hvd
import pytest
import torch
from farandole import elastic
from launch import launch

RANKS = 2


def step_lr(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def training():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    return model, optimizer, step_lr(optimizer)


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=1)


def steps(state, count):
    for _ in range(count):
        state.optimizer.step()
        state.scheduler.step()


def learning_rate(state):
    return state.optimizer.param_groups[0]["lr"]


class Counter:
    """An object with PyTorch's two methods and nothing else."""

    def __init__(self):
        self.count, self.lock = 0, threading.Lock()  # a lock can neither be copied nor pickled

    def state_dict(self):
        return {"count": self.count, "nested": [torch.tensor([self.count]), (1, {"a": torch.tensor(self.count)})]}

    def load_state_dict(self, state):
        assert state["nested"][0].item() == state["nested"][1][1]["a"].item() == state["count"]
        self.count = state["count"]


# ---- Schedulers, scalers, and what else has a state_dict
# --------------------------------------------------------------


def test_a_restored_scheduler_still_drives_its_optimizer():
    model, optimizer, scheduler = training()
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler)
    steps(state, 1)
    state.save()
    steps(state, 2)
    assert learning_rate(state) == 1.0
    state.restore()
    assert state.scheduler is scheduler and scheduler.optimizer is optimizer
    assert (learning_rate(state), scheduler.last_epoch) == (4.0, 1)
    steps(state, 1)
    assert learning_rate(state) == 2.0
    state.restore()  # the restored object is not the saved one
    assert (learning_rate(state), scheduler.last_epoch) == (4.0, 1)


def test_a_scaler_is_saved_and_restored_in_place():
    one = scaler()
    one.scale(torch.ones(1))
    state = hvd.elastic.TorchState(scaler=one)
    one.update(new_scale=64.0)
    state.restore()
    assert state.scaler is one and one.get_scale() == 16.0


def test_an_object_with_a_state_dict_is_not_copied():
    counter = Counter()
    state = hvd.elastic.TorchState(counter=counter)
    counter.count = 3
    state.save()
    counter.count = 4
    state.restore()
    assert state.counter is counter and counter.count == 3


def test_a_class_with_a_state_dict_is_a_plain_value():
    state = hvd.elastic.TorchState(kind=Counter)
    state.restore()
    assert state.kind is Counter


def check_sync_gives_all_ranks_the_state_of_rank_0():
    hvd.init()
    rank = hvd.rank()
    model, optimizer, scheduler = training()
    one, counter = scaler(), Counter()
    one.scale(torch.ones(1))
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, scaler=one, counter=counter, epoch=rank)
    steps(state, 1 + 2 * rank)
    one.update(new_scale=32.0 + rank)
    counter.count = 5 + rank
    state.sync()
    assert state.scheduler is scheduler and scheduler.optimizer is optimizer and state.scaler is one
    facts = [learning_rate(state), scheduler.last_epoch, one.get_scale(), counter.count, state.epoch]
    assert facts == [4.0, 1, 32.0, 5, 0], facts
    steps(state, 1)
    assert learning_rate(state) == 2.0
    state.restore()
    assert (learning_rate(state), scheduler.last_epoch, counter.count) == (4.0, 1, 5)


def test_sync_gives_all_ranks_the_state_of_rank_0():
    launch(RANKS, check_sync_gives_all_ranks_the_state_of_rank_0)


# ---- Attributes that are assigned later
# -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [elastic.ObjectState, hvd.elastic.TorchState])
def test_an_attribute_that_is_assigned_later_is_state(kind):
    state = kind(step=0)
    state.epoch_extra = [1]
    state.epoch_extra.append(2)
    state.restore()
    assert state.epoch_extra == [1]  # its first assignment saves it
    state.epoch_extra = [3]
    state.save()
    state.epoch_extra.append(4)
    state.restore()
    assert (state.epoch_extra, state.step) == ([3], 0)


@pytest.mark.parametrize("kind", [elastic.ObjectState, hvd.elastic.TorchState])
def test_private_names_are_not_state(kind):
    state = kind(step=0, _given=threading.Lock())
    lock = state._lock = threading.Lock()
    state._count = 1
    state.save()
    state._count = 2
    state.restore()
    assert state._lock is lock and state._count == 2


def test_names_of_the_class_are_not_state():
    class Own(elastic.ObjectState):
        size = 0

        def __init__(self, lock):
            self.lock = lock  # before the constructor of ObjectState: it is not state
            super().__init__(step=1)

        @property
        def double(self):
            return self.step * 2

        @double.setter
        def double(self, value):
            self.step = value // 2

    state = Own(threading.Lock())
    state.size, state.double = 7, 10
    state.restore()
    assert (state.size, state.double, state.step) == (7, 2, 1)


def test_a_value_that_cannot_be_copied_is_rejected_by_name():
    state = elastic.ObjectState(step=0)
    with pytest.raises(TypeError, match="state.lock: a lock cannot be saved.*call it state._lock"):
        state.lock = threading.Lock()
    assert not hasattr(state, "lock")
    state.save()


def test_an_attribute_may_be_deleted():
    state = hvd.elastic.TorchState(extra=1, counter=Counter())
    del state.extra, state.counter
    state.save()
    state.restore()
    assert not hasattr(state, "extra") and not hasattr(state, "counter")


def test_a_scheduler_that_is_assigned_later_is_handled_and_a_plain_value_may_take_its_place():
    model, optimizer, scheduler = training()
    state = hvd.elastic.TorchState(model, optimizer, scheduler=None)
    state.scheduler = scheduler
    steps(state, 1)
    state.restore()
    assert state.scheduler is scheduler and scheduler.last_epoch == 0
    state.scheduler = None
    state.save()
    state.restore()
    assert state.scheduler is None
    other = state.scheduler = step_lr(optimizer)
    assert state.scheduler is other


def test_a_state_may_be_copied():
    state = copy.deepcopy(hvd.elastic.TorchState(torch.nn.Linear(1, 1), epoch=2))
    assert state.epoch == 2 and state.model.weight.shape == (1, 1)


def check_later_attributes_are_synchronised():
    """A new rank takes part in sync, although it lacks the attributes of the others."""
    hvd.init()
    rank = hvd.rank()
    state = elastic.ObjectState()
    if rank == 0:
        state.epoch_extra = 1
    else:
        state.own = 1
    state.sync()
    assert state.epoch_extra == 1 and not hasattr(state, "own")
    state.epoch_extra += rank
    state.restore()
    assert state.epoch_extra == 1
    state = hvd.elastic.TorchState()
    if rank == 0:
        state.epoch_extra = 2
    state.sync()
    assert state.epoch_extra == 2


def test_later_attributes_are_synchronised():
    launch(RANKS, check_later_attributes_are_synchronised)


def check_sync_raises_on_all_ranks_if_handled_names_differ():
    hvd.init()
    state = hvd.elastic.TorchState(counter=Counter())
    if hvd.rank() == 1:
        state.other = Counter()
    with pytest.raises(
        farandole.MismatchError, match="rank 0 and rank 1 differ in which attributes .*: other; give them"
    ):
        state.sync()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == RANKS  # the world is still usable


def test_sync_raises_on_all_ranks_if_handled_names_differ():
    launch(RANKS, check_sync_raises_on_all_ranks_if_handled_names_differ)
