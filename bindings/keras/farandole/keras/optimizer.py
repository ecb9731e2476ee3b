"""DistributedOptimizer for Keras 3: any optimizer, with the average of all ranks' gradients, on every backend.

Each optimizer gets a class of its own name that overrides `apply`, through which the training step passes on every
backend. Gradients are reduced before the optimizer's own `apply`, so clipping uses the averages. A LossScaleOptimizer
is wrapped as a whole: its check for finite gradients must give the same result on all ranks; else some ranks would skip
a step in which the others wait for them.
"""

import keras

from ..basics import Average, global_process_set
from ..frameworks import fit_optimizers
from . import backend
from .compression import Compression
from .reduction import LocalVariables, Reduction, checked_options

_on = backend.module()


class _Distributed:
    """Precedes the class of an optimizer in the method resolution order."""

    _farandole = None

    def apply(self, grads, trainable_variables=None):  # Keras passes the arguments by these names
        known = self._trainable_variables if self.built else ()
        variables = known if trainable_variables is None else list(trainable_variables)
        if len(grads) == len(variables):  # else Keras reports the difference
            refuse_other_distribution()
            grads = self._farandole.fill_missing(list(grads), variables, self.name)
            if not self._reduces_when_it_updates():
                grads = self._farandole.reduce(grads, variables, self.name)
        return super().apply(grads, trainable_variables=trainable_variables)

    def _clip_gradients(self, grads):
        """Keras calls this with the gradients that an update uses: the averages of the accumulated passes."""
        if self._reduces_when_it_updates():
            update = (self._iterations + 1) % self.gradient_accumulation_steps == 0
            grads = self._farandole.only_when(update, grads, self.name)
        return super()._clip_gradients(grads)

    def _reduces_when_it_updates(self):
        # Local gradients are known by their variables, which Keras does not pass to _clip_gradients.
        return bool(self.gradient_accumulation_steps) and not self._farandole.local

    def register_local_var(self, variable):
        """Makes a variable local: its gradients are not reduced."""
        if self._farandole.local is None:
            self._farandole.local = LocalVariables((), self._farandole.scale_local)
        self._farandole.local.variables.append(variable)


class _DistributedLossScale(_Distributed):
    """A LossScaleOptimizer, which decides in `apply` and in `stateless_apply` whether gradients are finite.

    It reduces in every pass: ranks must agree on that decision before they accumulate.
    """

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        grads = self._farandole.reduce(grads, self._trainable_variables, self.name)
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _reduces_when_it_updates(self):
        return False


def _wrapped(optimizer, reduction, passes):
    """A copy of `optimizer`, of a class that reduces gradients and has the same name."""
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer: {optimizer!r} is not an optimizer of Keras {keras.__version__}")
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales_loss and keras.config.dtype_policy().name == "mixed_float16":
        # compile() would do the same, but around the reduction
        optimizer, scales_loss = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer"), True
    plain = type(optimizer)  # on PyTorch this is a subclass by Keras, not keras.optimizers.Adam
    bases = (_DistributedLossScale if scales_loss else _Distributed, plain)
    kind = type(plain.__name__, bases, {"__module__": plain.__module__})
    made = kind.from_config(_config_with_passes(optimizer.get_config(), passes, scales_loss))
    made._farandole = reduction
    if optimizer.built:
        _copy_state(optimizer, made)
    return made


def _config_with_passes(config, passes, scales_loss):
    """The configuration of an optimizer that accumulates the gradients of that number of batches."""
    if passes > 1:
        own = config["inner_optimizer"]["config"] if scales_loss else config
        if own.get("gradient_accumulation_steps"):
            raise ValueError(
                f"backward_passes_per_step={passes}: the optimizer has gradient_accumulation_steps="
                f"{own['gradient_accumulation_steps']} already; give one of them"
            )
        own["gradient_accumulation_steps"] = passes
    return config


def _copy_state(source, target):
    target.build(source._trainable_variables)
    if len(target.variables) == len(source.variables):  # an optimizer that begins to accumulate has more
        for mine, its in zip(target.variables, source.variables):
            mine.assign(keras.ops.copy(its.value))
    else:
        target.iterations.assign(source.iterations)


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

    All gradients of a step are reduced as one unit, before clipping. `groups`: the number of units instead.
    `backward_passes_per_step`: gradients of that number of batches are added up on each rank before they are reduced,
    and averaged if `average_aggregated_gradients`. An optimizer with gradient_accumulation_steps, which averages, is
    accepted instead. `sparse_as_dense`: gradients of embeddings on TensorFlow are reduced as dense ones.

    The state of a built optimizer is kept. Under the global policy mixed_float16 the result is a LossScaleOptimizer.
    `compression`, `gradient_predivide_factor` and `process_set` are as in farandole.torch. Options for devices have no
    effect. ValueError for unsupported arguments.
    """
    groups = checked_options(op, gradient_predivide_factor, backward_passes_per_step, groups or num_groups)
    refuse_other_distribution()
    factor = 1 if average_aggregated_gradients else backward_passes_per_step
    reduction = Reduction(name, compression, op, gradient_predivide_factor, process_set, factor, groups,
                          scale_local_gradients, sparse_as_dense)  # fmt: skip
    return _wrapped(optimizer, reduction, backward_passes_per_step)


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

    `local_layers`: a layer or a list of layers, which may be built later; each rank trains its own weights of them.
    `scale_local_gradients`: divides their gradients by the number of ranks, as the average divides the others.

    Other arguments are those of DistributedOptimizer. ValueError if an element of `local_layers` is not a layer.
    """
    made = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense, gradient_predivide_factor, op,
        backward_passes_per_step, average_aggregated_gradients, 0, groups, process_set, scale_local_gradients,
    )  # fmt: skip
    local = LocalVariables(local_layers, scale_local_gradients)
    if local.layers:
        made._farandole.local = local
    return made


def is_distributed(optimizer):
    return isinstance(optimizer, _Distributed)


def refuse_other_distribution():
    """ValueError if Keras or TensorFlow distributes the step inside this process too."""
    _on.refuse_strategy()
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "keras.distribution and farandole would both distribute the training: call "
            "keras.distribution.set_distribution(None), and start one process for each device with `farandole run`"
        )


def check_model(model):
    """ValueError before training if the model's step cannot run with a DistributedOptimizer.

    A LossScaleOptimizer must not wrap it, as `compile` does for a model whose policy is mixed_float16: ranks would
    disagree about a gradient that is infinite on one of them.
    """
    optimizer = model.optimizer
    if not is_distributed(optimizer) and is_distributed(getattr(optimizer, "inner_optimizer", None)):
        raise ValueError(
            "a LossScaleOptimizer wraps the DistributedOptimizer, and must be wrapped by it: "
            "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        )
    if is_distributed(optimizer):
        refuse_other_distribution()
        _on.check_model(model)


def load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False):
    """Loads a saved model. Its optimizer becomes a DistributedOptimizer with the saved state."""
    return fit_optimizers.load(keras.models.load_model, filepath, custom_optimizers, custom_objects,
                               lambda one: DistributedOptimizer(one, compression=compression))  # fmt: skip
