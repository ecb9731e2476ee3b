"""Callbacks for fit with Keras 2: equal states at the start, averaged metrics, learning rates, and the best model."""

import tensorflow as tf

from ...frameworks import fit_callbacks
from .optimizer import check_model
from .values import allreduce, broadcast_variables, state_of

Callback = tf.keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(fit_callbacks.BroadcastStates, Callback):
    """Gives all ranks the weights and the optimizer state of rank `root_rank` before the first batch.

    A model that its first batch builds gets them after that batch. `local_variables`: variables that each rank keeps,
    with the optimizer's state of them.
    """

    def _check(self, model):
        check_model(model)

    def _states(self):
        return state_of(self.model)

    def _send(self, variables):
        broadcast_variables(variables, self.root_rank)

    def _belongs_to(self, variable, local):
        # Keras names the optimizer's state of a variable after it: "SGD/m/dense/kernel:0", or in `legacy`
        # "SGD/dense/kernel/momentum:0".
        return f"/{local.name.split(':')[0]}" in variable.name


class MetricAverageCallback(fit_callbacks.AverageMetrics, Callback):
    """Replaces metrics at the end of an epoch by their averages over all ranks.

    Place it before callbacks that read metrics (ReduceLROnPlateau, ModelCheckpoint, TensorBoard).
    """

    def _average(self, values):
        return allreduce(values, name="keras.metrics")


class LearningRateScheduleCallback(fit_callbacks.ScheduleLearningRate, Callback):
    """Sets the learning rate to `initial_lr` times `multiplier`, from `start_epoch` until before `end_epoch`.

    `multiplier`: a number, or a function of the epoch. With staircase=False the epoch has a fraction, and the rate
    changes with each batch; that needs `steps_per_epoch` if Keras cannot derive it. `momentum_correction`: when the
    rate changes, scales the past updates that an optimizer with momentum keeps by the ratio of the rates.
    """

    def _rate(self):
        return float(tf.keras.backend.get_value(self._optimizer().learning_rate))

    def _set_rate(self, rate):
        self._optimizer().learning_rate = rate

    def _past_updates(self):
        optimizer = self._optimizer()
        kinds = [getattr(module, name) for module in (tf.keras.optimizers, tf.keras.optimizers.legacy)
                 for name in ("SGD", "RMSprop")]  # fmt: skip
        if not isinstance(optimizer, tuple(kinds)):
            return []
        if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            # Slots of other kinds are no past updates: "rms" and "mg" of RMSprop.
            return [one for one in optimizer.weights if one.name.split(":")[0].endswith("/momentum")]
        return [one for one in getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", ()) or ()]


class LearningRateWarmupCallback(fit_callbacks.WarmUpLearningRate, LearningRateScheduleCallback):
    """Raises the learning rate with each batch from `initial_lr` / size to `initial_lr` during `warmup_epochs`."""


class BestModelCheckpoint(fit_callbacks.SaveOnOneRank, tf.keras.callbacks.ModelCheckpoint):
    """Saves the model on rank 0 each time that `monitor` is better than ever before, to the path in `filepath`.

    `filepath` is an attribute, as in programs that set it after construction, and the last argument. Place the callback
    after MetricAverageCallback. ValueError at the start of training if no path is set.
    """

    def __init__(self, monitor="val_loss", verbose=0, mode="auto", save_weights_only=False, save_freq="epoch",
                 filepath=None):  # fmt: skip
        super().__init__(filepath or "unset", monitor=monitor, verbose=verbose, save_best_only=True,
                         save_weights_only=save_weights_only, mode=mode, save_freq=save_freq)  # fmt: skip
        self.filepath = filepath
