"""DistributedOptimizer for Keras 3: any optimizer, with the average of all ranks' gradients.

Gradients are reduced before the optimizer's own `apply`, so clipping uses the averages. A LossScaleOptimizer is wrapped
as a whole. Its check for finite gradients must give the same result on all ranks; else some ranks would skip a step in
which the others wait for them.
"""

import keras

from .. import torch as hvd
from ..basics import Average, Sum, global_process_set
from ..torch import Compression


class _Distributed:
    """Precedes the class of an optimizer in the method resolution order."""

    _farandole = None

    def apply(self, grads, trainable_variables=None):  # Keras gives them by these names
        return super().apply(self._farandole.reduce(grads, self.name), trainable_variables=trainable_variables)


class _Reduction:
    """The arguments of a DistributedOptimizer, and the reduction of its gradients."""

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
    """Returns an optimizer of a class of the same name that averages gradients over all ranks (op=Sum: adds them up).

    The state of a built optimizer is kept. `compression`, `gradient_predivide_factor` and `process_set` are as in
    farandole.torch. Options for devices, sparse gradients and groups have no effect: gradients stay where they are, are
    dense, and are fused automatically. ValueError for unsupported arguments.
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
    plain = type(optimizer)  # on PyTorch this is a subclass by Keras, not keras.optimizers.Adam
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
    """ValueError if a LossScaleOptimizer wraps the DistributedOptimizer, as `compile` does under mixed_float16.

    Ranks would then disagree about a gradient that is infinite on one of them.
    """
    if not is_distributed(optimizer) and is_distributed(getattr(optimizer, "inner_optimizer", None)):
        raise ValueError(
            "a LossScaleOptimizer wraps the DistributedOptimizer, and must be wrapped by it: "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        )


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False):
    """Loads a saved model. Its optimizer becomes a DistributedOptimizer with the saved state."""
    objects = {one.__name__: one for one in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
