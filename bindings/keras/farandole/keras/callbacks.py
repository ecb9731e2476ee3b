"""Callbacks for fit: equal states at the start, metrics averaged over ranks, and learning rates that warm up."""

import numpy as np

import keras

from .. import basics
from .optimizer import require_outermost
from .values import allreduce, broadcast_variables, state_of


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer state of rank `root_rank` before the first batch."""

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        self._local = {id(one) for one in local_variables or ()}
        self._done = False

    def on_train_begin(self, logs=None):
        require_outermost(self.model.optimizer)
        if self._done:
            return
        broadcast_variables([one for one in state_of(self.model) if id(one) not in self._local], self.root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces metrics at the end of an epoch by their averages over all ranks.

    Place it before callbacks that read metrics (ReduceLROnPlateau, ModelCheckpoint, TensorBoard).
    """

    def __init__(self, device=""):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
        if names:
            averages = allreduce(np.array([float(logs[name]) for name in names]), name="keras.metrics")
            logs.update(zip(names, map(float, averages)))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times `multiplier`, from `start_epoch` until before `end_epoch`.

    `multiplier`: a number, or a function of the epoch. With staircase=False the epoch has a fraction, and the rate
    changes with each batch; that needs `steps_per_epoch` if Keras cannot derive it.

    `momentum_correction`: scales the momentum with the learning rate, for the batch in which the rate changes.
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
        self._epoch, self._momentum = 0, None

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

    def on_train_batch_end(self, batch, logs=None):
        if self._momentum is not None:
            self._optimizer().momentum, self._momentum = self._momentum, None

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self._optimizer().learning_rate))

    def _optimizer(self):
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _adjust(self, epoch):
        optimizer = self._optimizer()
        before = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        now = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = now
        if self.momentum_correction and getattr(optimizer, "momentum", None) and before > 0 and now != before:
            self._momentum = optimizer.momentum
            optimizer.momentum = self._momentum * now / before


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate with each batch from `initial_lr` / size to `initial_lr` during `warmup_epochs`."""

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
