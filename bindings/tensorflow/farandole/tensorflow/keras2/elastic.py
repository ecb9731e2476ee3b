"""Elastic training with fit of Keras 2: the state that ranks have in common, and callbacks that commit it."""

import tensorflow as tf

from ...frameworks import fit_callbacks
from ..elastic import TensorFlowKerasState, run  # noqa: F401
from .values import state_of


class KerasState(TensorFlowKerasState):
    """A built model, its optimizer, and other values. Assigning another model or optimizer saves it."""

    def __init__(self, model, optimizer=None, **attributes):
        super().__init__(model, optimizer, **attributes)

    def _all_variables(self):
        return state_of(self.model, self.optimizer)

    def reset(self):
        """Drops the compiled training step: it may contain the number of ranks of the former world."""
        self.model.train_function = None
        super().reset()


class CommitStateCallback(fit_callbacks.CommitState, tf.keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches, and at the end of each epoch."""


class UpdateBatchStateCallback(fit_callbacks.UpdateBatchState, tf.keras.callbacks.Callback):
    """Keeps state.batch: the number of batches of this epoch that are done."""


class UpdateEpochStateCallback(fit_callbacks.UpdateEpochState, tf.keras.callbacks.Callback):
    """Keeps state.epoch: the number of epochs that are done, including those of earlier calls of fit."""
