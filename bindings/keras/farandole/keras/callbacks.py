"""Callbacks for fit: equal states at the start, averaged metrics, learning rates that warm up, and the best model.

They read the model through self.model: in the middle of an epoch on JAX that attaches the current weights to it.
"""

import keras

from ..frameworks import fit_callbacks
from .optimizer import check_model
from .values import allreduce, broadcast_variables, state_of


class BroadcastGlobalVariablesCallback(fit_callbacks.BroadcastStates, keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer state of rank `root_rank` before the first batch.

    A model that its first batch builds, as TensorFlow does with subclasses of Model, gets them after that batch.

    `local_variables`: variables that each rank keeps, such as those of the local layers of a
    PartialDistributedOptimizer, with the optimizer's state of them.
    """

    def _check(self, model):
        check_model(model)

    def _states(self):
        return state_of(self.model)

    def _send(self, variables):
        broadcast_variables(variables, self.root_rank)

    def _belongs_to(self, variable, local):
        # Keras names the optimizer's state of a variable after it: "adam/dense_kernel_momentum" of "dense/kernel".
        return variable.path.rpartition("/")[2].startswith(local.path.replace("/", "_") + "_")


class MetricAverageCallback(fit_callbacks.AverageMetrics, keras.callbacks.Callback):
    """Replaces metrics at the end of an epoch by their averages over all ranks.

    Place it before callbacks that read metrics (ReduceLROnPlateau, ModelCheckpoint, TensorBoard).
    """

    def _average(self, values):
        return allreduce(values, name="keras.metrics")


class _OfOptimizer:
    """The learning rate and the memory of the model's optimizer."""

    def _rate(self):
        return float(keras.ops.convert_to_numpy(self._optimizer().learning_rate))

    def _set_rate(self, rate):
        self._optimizer().learning_rate = rate

    def _past_updates(self):
        optimizer = self._optimizer()
        if not optimizer.built or not getattr(optimizer, "momentum", None):
            return []
        if isinstance(optimizer, keras.optimizers.SGD):
            return [one for one in optimizer.momentums if one is not None]
        if isinstance(optimizer, keras.optimizers.RMSprop):
            return [one for one in optimizer._momentums if one is not None]
        return []


class LearningRateScheduleCallback(_OfOptimizer, fit_callbacks.ScheduleLearningRate, keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr` times `multiplier`, from `start_epoch` until before `end_epoch`.

    `multiplier`: a number, or a function of the epoch. With staircase=False the epoch has a fraction, and the rate
    changes with each batch; that needs `steps_per_epoch` if Keras cannot derive it.

    `momentum_correction`: when the rate changes, scales the past updates that SGD and RMSprop with a momentum keep by
    the ratio of the rates. This equals a scaled momentum for that batch, and works in compiled steps too.
    """


class LearningRateWarmupCallback(fit_callbacks.WarmUpLearningRate, LearningRateScheduleCallback):
    """Raises the learning rate with each batch from `initial_lr` / size to `initial_lr` during `warmup_epochs`."""


class BestModelCheckpoint(fit_callbacks.SaveOnOneRank, keras.callbacks.ModelCheckpoint):
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
