"""DistributedOptimizer for optimizers of TensorFlow 1 and of Keras."""

import tensorflow as tf

from ..basics import Average, global_process_set
from .aggregation import LocalGradientAggregationHelper
from .compression import Compression
from .reduction import GradientReduction


def DistributedOptimizer(optimizer, name=None, use_locking=False, device_dense="", device_sparse="",
                         compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average,
                         gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None,
                         process_set=global_process_set, scale_local_gradients=True):  # fmt: skip
    """An optimizer that reduces gradients over all ranks before it applies them.

    For a Keras optimizer it is farandole.tensorflow.keras.DistributedOptimizer. For a tf.compat.v1.train.Optimizer it
    is one whose compute_gradients reduces. With `backward_passes_per_step` gradients are summed on this rank over so
    many calls before they are reduced (divided by their number with `average_aggregated_gradients`). The other
    arguments are those of DistributedGradientTape. ValueError for other objects, and if the arguments do not fit
    together.
    """
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: it must be at least 1")
    groups = groups if groups is not None else num_groups
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        reduction = GradientReduction(name or f"Distributed{type(optimizer).__name__}", compression, sparse_as_dense,
                                      op, gradient_predivide_factor, groups, process_set)  # fmt: skip
        helper = None
        if backward_passes_per_step > 1:
            helper = LocalGradientAggregationHelper(
                backward_passes_per_step, reduction, sparse_as_dense, average_aggregated_gradients
            )
        return _DistributedV1Optimizer(optimizer, reduction, helper, use_locking)
    if hasattr(optimizer, "apply_gradients"):
        from . import keras

        return keras.DistributedOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
            backward_passes_per_step, average_aggregated_gradients, 0, groups or None, process_set,
            scale_local_gradients,
        )  # fmt: skip
    raise ValueError(
        "DistributedOptimizer takes a tf.compat.v1.train.Optimizer or a Keras optimizer, not "
        f"{type(optimizer).__name__}"
    )


class _DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """Passes all methods to another optimizer, and reduces the gradients in compute_gradients."""

    def __init__(self, optimizer, reduction, helper, use_locking):
        super().__init__(use_locking, f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer
        self._reduction = reduction
        self._helper = helper

    def compute_gradients(self, *arguments, **options):
        """The gradients of all ranks, reduced, with their variables."""
        pairs = self._optimizer.compute_gradients(*arguments, **options)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        reduce = self._helper.compute_gradients if self._helper else self._reduction
        return list(zip(reduce(gradients, variables), variables))

    def apply_gradients(self, *arguments, **options):
        """As the optimizer's. With backward_passes_per_step it does so only in a call that has reduced."""
        if self._helper is None:
            return self._optimizer.apply_gradients(*arguments, **options)
        return self._helper.apply_gradients(lambda: self._optimizer.apply_gradients(*arguments, **options))

    def get_slot(self, *arguments, **options):
        """As the optimizer's."""
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments, **options):
        """As the optimizer's."""
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self, *arguments, **options):
        """As the optimizer's, and the counters of backward_passes_per_step."""
        own = self._helper.variables() if self._helper else []
        return [*self._optimizer.variables(*arguments, **options), *own]
