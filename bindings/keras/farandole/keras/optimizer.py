"""DistributedOptimizer for Keras 3: any optimizer, which gets the average of all ranks' gradients.

Gradients are reduced before the optimizer's own `apply`, so clipping sees the averages. Of a LossScaleOptimizer the
whole is wrapped and not what is in it: whether a gradient is finite must come out alike on all ranks, or some would
skip a step in which the others wait for them.
"""

import keras

from .. import torch as hvd
from ..basics import Average, Sum, global_process_set
from ..torch import Compression


class _Distributed:
    """Stands before the class of an optimizer in the order of methods."""

    _farandole = None

    def apply(self, grads, trainable_variables=None):  # Keras gives them by these names
        return super().apply(self._farandole.reduce(grads, self.name), trainable_variables=trainable_variables)


class _Reduction:
    """What DistributedOptimizer was told."""

    def __init__(self, name, compression, op, predivide, process_set):
        self.name, self.compression, self.op, self.process_set = name, compression, op, process_set
        self.prescale, self.postscale = 1.0 / predivide, predivide

    def reduce(self, grads, optimizer_name):
        if not self.process_set.included():
            return list(grads)
        waiting = []
        for number, gradient in enumerate(grads):
            if gradient is None:
                waiting.append(None)
                continue
            small, context = self.compression.compress(gradient.detach().contiguous())
            name = f"{self.name or optimizer_name}.{number}"
            handle = hvd.allreduce_async(small, None, name, self.op, self.prescale, self.postscale, self.process_set)
            waiting.append((handle, context))
        return [one and self.compression.decompress(hvd.synchronize(one[0]), one[1]) for one in waiting]


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
    """The same optimizer, of a class of the same name, which averages (or with op=Sum adds up) gradients over all
    ranks.

    Its state is kept where it has one. What is said of devices, sparse gradients and groups changes nothing: gradients
    stay where they are, are dense, and are fused by themselves.
    """
    if op not in (Average, Sum):
        raise ValueError("op: Keras's DistributedOptimizer takes Average or Sum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if backward_passes_per_step != 1:
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step}: Keras accumulates itself; give its optimizer "
            f"gradient_accumulation_steps={backward_passes_per_step}"
        )
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    plain = type(optimizer)  # on PyTorch this is Keras's own class for it, and not keras.optimizers.Adam
    kind = type(plain.__name__, (_Distributed, plain), {"__module__": plain.__module__})
    made = kind.from_config(optimizer.get_config())
    made._farandole = _Reduction(name, compression, op, gradient_predivide_factor, process_set)
    if optimizer.built:
        made.build(optimizer._trainable_variables)
        for mine, its in zip(made.variables, optimizer.variables):
            mine.assign(its)
    return made


def is_distributed(optimizer):
    return isinstance(optimizer, _Distributed)


def require_outermost(optimizer):
    """Under mixed_float16 `compile` wraps the optimizer once more; then ranks could part over a gradient that is
    infinite on one of them."""
    if not is_distributed(optimizer) and is_distributed(getattr(optimizer, "inner_optimizer", None)):
        raise ValueError(
            "a LossScaleOptimizer is around the DistributedOptimizer, and must be inside: "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        )


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False):
    """A saved model, whose optimizer goes on as a DistributedOptimizer with the state that it had."""
    objects = {one.__name__: one for one in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
