"""farandole.tensorflow.elastic: TensorFlow jobs that lose ranks, get replacements, and continue.

state = hvd.elastic.TensorFlowState(variables=model.variables + optimizer.variables, batch=0)

@hvd.elastic.run
def train(state):
    while state.batch < 100:
        step()
        state.batch += 1
        state.commit()
"""

import functools

import tensorflow as tf

from .. import elastic, errors
from ..elastic import ObjectState, State
from . import xla
from .functions import broadcast_variables
from .library import last_loss

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


def run(func):
    """farandole.elastic.run for functions whose collectives are ops of TensorFlow, which raise TensorFlow's errors."""
    return elastic.run(_with_losses(func))


def _with_losses(func):
    """The function with HorovodInternalError in place of an error of TensorFlow that reports a lost rank."""

    @functools.wraps(func)
    def converted(*arguments, **options):
        try:
            return func(*arguments, **options)
        except tf.errors.OpError as error:
            loss = loss_of(error)
            if loss is None:
                raise
            raise loss from error

    return converted


def loss_of(error):
    """The failure of farandole that an error of TensorFlow reports, if it ended a group; else None.

    It is a HorovodInternalError, and has the rank that was lost.
    """
    loss = last_loss()
    if loss is None or not (loss.text in str(error) or isinstance(error, tf.errors.CancelledError)):
        loss = xla.loss_in(str(error))
    return None if loss is None else errors.as_horovod(loss)


class TensorFlowState(ObjectState):
    """Variables, and other values: TensorFlowState(variables=[...], epoch=0).

    `variables`: those of a model and an optimizer, the same on all ranks. Other values are copied and pickled, as by
    ObjectState. ValueError for a session of TensorFlow 1.
    """

    variables = None  # attributes of the class are not plain values of the state

    def __init__(self, variables=None, session=None, **attributes):
        if session is not None:
            raise ValueError("TensorFlowState: sessions of TensorFlow 1 are not supported; run eagerly without one")
        if variables is None:
            variables = tf.compat.v1.global_variables()
        object.__setattr__(self, "variables", list(variables))
        super().__init__(**attributes)
        self._save_variables()

    def _all_variables(self):
        return self.variables

    def _save_variables(self):
        # Copies: the memory of a value may become that of the next one.
        self._values_of_variables = [tf.identity(tf.convert_to_tensor(one)) for one in self._all_variables()]

    def save(self):
        """Saves the variables and the other values in memory."""
        self._save_variables()
        super().save()

    def restore(self):
        """Restores the last save()."""
        for variable, value in zip(self._all_variables(), self._values_of_variables):
            variable.assign(value)
        super().restore()

    @_with_losses
    def sync(self):
        """Gives all ranks the state of rank 0."""
        broadcast_variables(self._all_variables(), 0)
        super().sync()
        self.save()


class TensorFlowKerasState(TensorFlowState):
    """A built Keras model, its optimizer, and other values: TensorFlowKerasState(model, optimizer, epoch=0).

    The optimizer is by default that of the compiled model. `backend` is ignored.
    """

    model = optimizer = None

    def __init__(self, model, optimizer=None, backend=None, **attributes):
        object.__setattr__(self, "model", model)
        object.__setattr__(self, "optimizer", optimizer)
        super().__init__([], **attributes)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in ("model", "optimizer"):
            self._save_variables()

    def _all_variables(self):
        optimizer = self.optimizer or getattr(self.model, "optimizer", None)
        if optimizer is None:
            return list(self.model.weights)
        if not getattr(optimizer, "built", True):
            optimizer.build(self.model.trainable_variables)
        variables = optimizer.variables
        return [*self.model.weights, *(variables() if callable(variables) else variables)]
