"""Elastic training with fit: the state that ranks have in common, and callbacks that commit it between batches.

state = hvd.elastic.KerasState(model, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    model.fit(data, steps_per_epoch=100, epochs=90 - state.epoch,
              callbacks=[hvd.elastic.CommitStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state)])
"""

import functools

import keras

from .. import elastic
from ..elastic import ObjectState
from ..frameworks import fit_callbacks
from . import backend
from .values import broadcast_variables, state_of

_on = backend.module()


def run(func):
    """farandole.elastic.run for Keras: it recognises failures inside TensorFlow's and JAX's compiled steps too."""

    @functools.wraps(func)
    def with_own_errors(state, *args, **kwargs):
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            failure = _on.failure_of(error)
            if failure is None:
                raise
            raise failure from error

    return elastic.run(with_own_errors)


class KerasState(ObjectState):
    """A built model, its optimizer, and other values.

    Assigning another model or optimizer saves it. Other public attributes are state, as those of ObjectState.
    """

    model = optimizer = None  # attributes of the class are not plain values of the state

    def __init__(self, model, optimizer=None, **attributes):
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "optimizer", optimizer)
        super().__init__(**attributes)
        self._save_weights()

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in ("model", "optimizer"):
            self._save_weights()

    def _variables(self):
        return state_of(self.model, self.optimizer)

    def _saved_variables(self):
        """Those of the state, and this rank's own seeds."""
        variables = self._variables()
        known = {id(one) for one in variables}
        return [*variables, *(one for one in self.model.variables if id(one) not in known)]

    def _save_weights(self):
        _on.attach_state(self.model)
        self._weights = _on.copies_of([one.value for one in self._saved_variables()])

    def save(self):
        """Saves the weights and the other values in memory."""
        self._save_weights()
        super().save()

    def restore(self):
        """Restores the last save()."""
        _on.abandon_step(self.model)
        # Copies again, because JAX's steps take the memory of variables over.
        for variable, value in zip(self._saved_variables(), _on.copies_of(self._weights)):
            variable.assign(value)
        super().restore()

    def reset(self):
        """Drops the compiled training step: it may contain the number of ranks of the former world."""
        self.model.train_function = None
        super().reset()

    def sync(self):
        """Gives all ranks the state of rank 0."""
        broadcast_variables(self._variables(), 0)
        super().sync()
        self.save()


class CommitStateCallback(fit_callbacks.CommitState, keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches, and at the end of each epoch."""


class UpdateBatchStateCallback(fit_callbacks.UpdateBatchState, keras.callbacks.Callback):
    """Keeps state.batch: the number of batches of this epoch that are done."""


class UpdateEpochStateCallback(fit_callbacks.UpdateEpochState, keras.callbacks.Callback):
    """Keeps state.epoch: the number of epochs that are done, including those of earlier calls of fit."""
