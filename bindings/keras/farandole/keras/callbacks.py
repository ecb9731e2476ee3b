"""Callbacks for fit: equal states at the start, averaged metrics, learning rates that warm up, and the best model.

They read the model through self.model: in the middle of an epoch on JAX that attaches the current weights to it.
"""

import keras
import numpy as np

from .. import basics
from .optimizer import check_model
from .values import allreduce, broadcast_variables, state_of


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer state of rank `root_rank` before the first batch.

    A model that its first batch builds, as TensorFlow does with subclasses of Model, gets them after that batch.

    `local_variables`: variables that each rank keeps, such as those of the local layers of a
    PartialDistributedOptimizer, with the optimizer's state of them.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        self._local = list(local_variables or ())
        self._done = False

    def on_train_begin(self, logs=None):
        check_model(self.model)
        if self.model.built:
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        if not self._done:
            self._broadcast()

    def _broadcast(self):
        if self._done:
            return
        broadcast_variables([one for one in state_of(self.model) if not self._is_local(one)], self.root_rank)
        self._done = True

    def _is_local(self, variable):
        if any(variable is one for one in self._local):
            return True
        # Keras names the optimizer's state of a variable after it: "adam/dense_kernel_momentum" of "dense/kernel".
        name = variable.path.rpartition("/")[2]
        return any(name.startswith(one.path.replace("/", "_") + "_") for one in self._local)


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

    `momentum_correction`: when the rate changes, scales the past updates that SGD and RMSprop with a momentum keep by
    the ratio of the rates. This equals a scaled momentum for that batch, and works in compiled steps too.
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
            logs["lr"] = float(keras.ops.convert_to_numpy(self._optimizer().learning_rate))

    def _optimizer(self):
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _adjust(self, epoch):
        optimizer = self._optimizer()
        before = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
        now = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = now
        if self.momentum_correction and before > 0 and now != before:
            for variable in _past_updates(optimizer):
                variable.assign(variable * (now / before))


def _past_updates(optimizer):
    """The state of an optimizer with momentum that adds up past updates, each times its learning rate."""
    if not optimizer.built or not getattr(optimizer, "momentum", None):
        return []
    if isinstance(optimizer, keras.optimizers.SGD):
        return [one for one in optimizer.momentums if one is not None]
    if isinstance(optimizer, keras.optimizers.RMSprop):
        return [one for one in optimizer._momentums if one is not None]
    return []


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


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the model on rank 0 each time that `monitor` is better than ever before, to the path in `filepath`.

    `filepath` is an attribute, as in programs that set it after construction, and the last argument. Place the callback
    after MetricAverageCallback, so that the metric is the one of all ranks. ValueError at the start of training if no
    path is set.
    """

    def __init__(self, monitor="val_loss", verbose=0, mode="auto", save_freq="epoch", save_weights_only=False,
                 filepath=None):  # fmt: skip
        unset = "unset.weights.h5" if save_weights_only else "unset.keras"
        super().__init__(filepath or unset, monitor=monitor, verbose=verbose, save_best_only=True,
                         save_weights_only=save_weights_only, mode=mode, save_freq=save_freq)  # fmt: skip
        self.filepath = filepath

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
