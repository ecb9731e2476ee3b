"""DistributedOptimizer for Keras 2: optimizers of tf.keras.optimizers, also those of its module `legacy`.

Each optimizer gets a class of its own name that reduces the gradients in `apply_gradients`, so that clipping uses the
averages. A LossScaleOptimizer is wrapped as a whole: all ranks must agree whether gradients are finite.
"""

import tensorflow as tf

from ...basics import Average, Sum, global_process_set
from ...frameworks import fit_optimizers
from .. import compiled
from ..aggregation import LocalGradientAggregationHelper
from ..calls import plain
from ..compression import Compression
from ..reduction import GradientReduction, refuse_strategy, scale_local
from .values import build, variables_of


class _Distributed:
    """Precedes the class of an optimizer in the method resolution order."""

    _farandole = None  # a _Reduction

    @plain
    def apply_gradients(self, grads_and_vars, *arguments, **options):
        gradients, variables = map(list, zip(*grads_and_vars))
        mine = self._farandole
        if mine.helper is None:
            reduced = mine(gradients, variables)
            return super().apply_gradients(list(zip(reduced, variables)), *arguments, **options)
        with tf.init_scope():
            build(self, variables)  # not in the branch in which the helper applies them
        reduced = mine.helper.compute_gradients(gradients, variables)
        apply = super().apply_gradients
        return mine.helper.apply_gradients(lambda: apply(list(zip(reduced, variables)), *arguments, **options))

    def register_local_var(self, variable):
        """Makes a variable local: its gradients are not reduced."""
        self._farandole.local_variables.append(variable)


class _New(_Distributed):
    """An optimizer of tf.keras.optimizers."""

    def build(self, var_list):
        super().build(var_list)
        self._farandole.restore(self.variables)


class _Legacy(_Distributed):
    """An optimizer of tf.keras.optimizers.legacy."""

    def _create_all_weights(self, var_list):
        super()._create_all_weights(var_list)
        self._farandole.restore(self.variables())


class _Reduction:
    """The reduction of an optimizer's gradients, of which those of local variables stay on their rank."""

    def __init__(self, reduction, passes, averages, local_layers, scales_local):
        self._reduction, self._layers, self._scales_local = reduction, local_layers, scales_local
        self.local_variables = []
        self.former = None  # the values of the variables of the optimizer that was wrapped
        self.helper = LocalGradientAggregationHelper(passes, self, False, averages) if passes > 1 else None

    def __call__(self, gradients, variables):
        if self._reduction.process_set.included() is None:
            self._reduction.process_set.group("DistributedOptimizer")  # raises: training alone would go unnoticed
        if self._reduction.process_set.included() is False:
            return gradients
        local = {one.ref() for layer in self._layers for one in layer.trainable_variables}
        local |= {one.ref() for one in self.local_variables}
        is_local = [variable.ref() in local for variable in variables]
        shared = [None if kept else one for one, kept in zip(gradients, is_local)]
        reduced = self._reduction(shared, variables)
        for index in [index for index, kept in enumerate(is_local) if kept]:
            own = gradients[index]
            reduced[index] = scale_local(own, self._reduction.process_set) if self._scales_local else own
        return reduced

    def restore(self, variables):
        """Gives the optimizer's new variables the values of the optimizer that was wrapped."""
        values, self.former = self.former, None
        if values is not None and len(values) == len(variables):
            for variable, value in zip(variables, values):
                variable.assign(value)


def _wrapped(optimizer, reduction):
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    known = (tf.keras.optimizers.Optimizer, tf.keras.optimizers.legacy.Optimizer)
    if not isinstance(optimizer, known):
        raise ValueError(f"optimizer: {optimizer!r} is not an optimizer of Keras 2")
    scaling = tf.keras.mixed_precision.LossScaleOptimizer
    if tf.keras.mixed_precision.global_policy().name == "mixed_float16" and not isinstance(optimizer, scaling):
        optimizer = scaling(optimizer)  # compile() would do the same, but around the reduction
    plain_class = type(optimizer)
    base = _Legacy if isinstance(optimizer, known[1]) else _New
    kind = type(plain_class.__name__, (base, plain_class), {"__module__": plain_class.__module__})
    made = kind.from_config(optimizer.get_config())
    made._farandole = reduction
    values = [one.numpy() for one in variables_of(optimizer)]
    if getattr(getattr(optimizer, "inner_optimizer", optimizer), "_built", len(values) > 1):
        reduction.former = values  # an optimizer of `legacy` that was not used has one variable: its counter
    return made


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Returns an optimizer of a class of the same name that averages gradients over all ranks (op=Sum: adds them up).

    Gradients are reduced before clipping. `backward_passes_per_step`: gradients of that number of batches are added up
    on each rank before they are reduced, and averaged if `average_aggregated_gradients`. Other arguments are those of
    farandole.tensorflow.DistributedGradientTape. The state of a built optimizer is kept. Under the global policy
    mixed_float16 the result is a LossScaleOptimizer. ValueError for unsupported arguments.
    """
    return _distributed(optimizer, name, compression, sparse_as_dense, gradient_predivide_factor, op,
                        backward_passes_per_step, average_aggregated_gradients, groups or num_groups, process_set, (),
                        scale_local_gradients)  # fmt: skip


def PartialDistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    groups=None,
    process_set=global_process_set,
    local_layers=None,
    scale_local_gradients=True,
):
    """Returns a DistributedOptimizer that leaves the gradients of `local_layers` on their rank.

    `local_layers`: a layer or a list of layers. `scale_local_gradients`: divides their gradients by the number of
    ranks, as the average divides the others. ValueError if an element of `local_layers` is not a layer.
    """
    layers = fit_optimizers.layers_of(local_layers, tf.keras.layers.Layer)
    return _distributed(optimizer, name, compression, sparse_as_dense, gradient_predivide_factor, op,
                        backward_passes_per_step, average_aggregated_gradients, groups, process_set, layers,
                        scale_local_gradients)  # fmt: skip


def _distributed(optimizer, name, compression, sparse_as_dense, predivide, op, passes, averages, groups, process_set,
                 local_layers, scales_local):  # fmt: skip
    if op not in (Average, Sum):
        raise ValueError("op: Keras's DistributedOptimizer takes Average or Sum")
    if not isinstance(passes, int) or passes < 1:
        raise ValueError(f"backward_passes_per_step={passes!r} must be a number of batches, 1 or more")
    refuse_strategy()
    reduction = GradientReduction(name or f"Distributed{type(optimizer).__name__}", compression, sparse_as_dense, op,
                                  predivide, groups or None, process_set)  # fmt: skip
    return _wrapped(optimizer, _Reduction(reduction, passes, averages, local_layers, scales_local))


def check_model(model):
    """ValueError before training if the model's step cannot run with a DistributedOptimizer."""
    optimizer = model.optimizer
    if isinstance(getattr(optimizer, "inner_optimizer", None), _Distributed):
        raise ValueError(
            "a LossScaleOptimizer wraps the DistributedOptimizer, and must be wrapped by it: "
            "hvd.DistributedOptimizer(tf.keras.mixed_precision.LossScaleOptimizer(optimizer))"
        )
    if not isinstance(optimizer, _Distributed):
        return
    refuse_strategy()
    if getattr(model, "_jit_compile", None) and not model.run_eagerly and compiled.refusal() is not None:
        raise ValueError(f"jit_compile=True: {compiled.refusal()}")


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False):
    """Loads a saved model. Its optimizer becomes a DistributedOptimizer with the saved state."""
    model = fit_optimizers.load(tf.keras.models.load_model, filepath, custom_optimizers, custom_objects,
                                lambda one: DistributedOptimizer(one, compression=compression))  # fmt: skip
    if getattr(model, "optimizer", None) is not None:
        build(model.optimizer, model.trainable_variables)
    return model
