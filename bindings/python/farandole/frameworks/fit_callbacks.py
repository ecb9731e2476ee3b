"""What the callbacks for fit have in common for Keras 2 and 3. Theirs derive from this and from Keras's Callback."""

import numpy as np

from .. import basics


class BroadcastStates:
    """BroadcastGlobalVariablesCallback. Its class has these functions for its Keras.

    `_check(model)` raises ValueError if the model cannot be trained. `_send(variables)` gives them the values of rank
    `root_rank`; `_states()` has all that training changes. `_belongs_to(variable, local)`: whether the variable is the
    optimizer's state of a local one.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        self._local = list(local_variables or ())
        self._done = False

    def on_train_begin(self, logs=None):
        self._check(self.model)
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if not self._done:
            self._broadcast()

    def _broadcast(self):
        if self._done:
            return
        self._send([one for one in self._states() if not self._is_local(one)])
        self._done = True

    def _is_local(self, variable):
        return any(variable is one for one in self._local) or any(
            self._belongs_to(variable, one) for one in self._local
        )


class AverageMetrics:
    """MetricAverageCallback. `_average(array)` is the average of the array over all ranks."""

    def __init__(self, device=""):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
        if names:
            averages = self._average(np.array([float(logs[name]) for name in names]))
            logs.update(zip(names, map(float, averages)))


class ScheduleLearningRate:
    """LearningRateScheduleCallback. The class has `_rate`, `_set_rate` and `_past_updates` for its Keras.

    `_past_updates` has the state of an optimizer with momentum that adds up past updates, each times its learning rate.
    """

    def __init__(
        self, initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, momentum_correction=True,
        steps_per_epoch=None,
    ):  # fmt: skip
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction, self.steps_per_epoch = staircase, momentum_correction, steps_per_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self._epoch = 0

    def on_train_begin(self, logs=None):
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError("the number of batches of an epoch is unknown: give steps_per_epoch")

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if self.staircase and batch == 0:
            self._adjust(self._epoch)
        elif not self.staircase:
            self._adjust(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = self._rate()

    def _optimizer(self):
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _adjust(self, epoch):
        before, now = self._rate(), self.initial_lr * self.multiplier(epoch)
        self._set_rate(now)
        if self.momentum_correction and before > 0 and now != before:
            for variable in self._past_updates():
                variable.assign(variable * (now / before))


class WarmUpLearningRate(ScheduleLearningRate):
    """LearningRateWarmupCallback."""

    def __init__(self, initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0):
        def grow(epoch):
            done = min(1.0, (epoch + 1.0 / self.steps_per_epoch) / warmup_epochs)  # complete in the last batch
            return (1 + (basics.size() - 1) * done) / basics.size()

        super().__init__(initial_lr, grow, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.warmup_epochs, self.verbose = warmup_epochs, verbose

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.warmup_epochs and self.verbose > 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self.initial_lr:g}.")


class SaveOnOneRank:
    """BestModelCheckpoint: a ModelCheckpoint whose `filepath` may be set later, and that rank 0 saves."""

    def on_train_begin(self, logs=None):
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint: set its filepath before fit")
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch, logs=None):
        if basics.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if basics.rank() == 0:
            super().on_epoch_end(epoch, logs)


class CommitState:
    """elastic.CommitStateCallback."""

    def __init__(self, state, batches_per_commit=1):
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs=None):
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left == 0:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch, logs=None):
        self.state.commit()


class UpdateBatchState:
    """elastic.UpdateBatchStateCallback."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch, logs=None):
        self.state.batch = batch + 1

    def on_epoch_end(self, epoch, logs=None):
        self.state.batch = 0


class UpdateEpochState:
    """elastic.UpdateEpochStateCallback."""

    def __init__(self, state):
        super().__init__()
        self.state, self._first = state, None

    def on_train_begin(self, logs=None):
        self._first = self.state.epoch

    def on_epoch_end(self, epoch, logs=None):
        self.state.epoch = self._first + epoch + 1
