"""Optimizers that are called directly, callbacks, values and states, on two ranks with every backend."""

import os
import sys
import tempfile

import farandole
import farandole.keras as hvd
import keras
import keras_backends
import numpy as np
import pytest
from expect import fails
from keras_models import (
    BATCH,
    alike_on_ranks,
    first,
    gradient,
    model,
    my_data,
    numpy_of,
    train_together,
    weight,
)
from launch import checks_of

BACKEND = keras.config.backend()


def sgd(*arguments, **options):
    return keras.optimizers.SGD(*arguments, **options)


def after_steps(optimizer, *gradients):
    """The values of one variable after a step with each gradient. None: no gradient."""
    variable, values = weight(), []
    for value in gradients:
        optimizer.apply([None if value is None else gradient(value)], [variable])
        values.append(first(variable))
    return values


def check_init():
    hvd.init()
    assert hvd.size() == 2


# ---- Optimizers ------------------------------------------------------------------------------------------------------


def check_averages_and_sums():
    rank = hvd.rank()
    assert after_steps(hvd.DistributedOptimizer(sgd(1.0)), 2 * rank, 4) == [-1, -5]
    assert after_steps(hvd.DistributedOptimizer(sgd(1.0), op=hvd.Sum), 2 * rank, 4) == [-2, -10]
    assert after_steps(hvd.DistributedOptimizer(sgd(1.0), gradient_predivide_factor=4.0), 2 * rank, 4) == [-1, -5]
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        assert after_steps(hvd.DistributedOptimizer(sgd(1.0), compression=compression), 2 * rank, 4) == [-1, -5]


def check_clipping_applies_to_the_average():
    # The average of 0 and 8 is 4, which is clipped to 3. The average of clipped parts would be 1.5.
    assert after_steps(hvd.DistributedOptimizer(sgd(1.0, clipvalue=3.0)), 8 * hvd.rank()) == [-3]


def check_types_and_groups():
    types = ["float16", "bfloat16", "float32", "float64"] if BACKEND != "jax" else ["float16", "bfloat16", "float32"]
    variables = [keras.Variable(np.zeros(3), dtype=one) for one in types]
    for groups in (None, 2, 9, [variables[:2], variables[2:]]):
        optimizer = hvd.DistributedOptimizer(sgd(1.0), groups=groups, name=f"groups{groups}")
        for variable in variables:
            variable.assign(np.zeros(3))
        optimizer.apply([keras.ops.full((3,), 2.0 * hvd.rank(), dtype=one) for one in types], variables)
        assert [first(one) for one in variables] == [-1] * len(types)


def check_passes_of_one_update():
    rank = hvd.rank()
    added = hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=2)
    assert after_steps(added, 2 * rank, 4, 1, 2 * rank) == [0, -5, -5, -7]
    averaged = hvd.DistributedOptimizer(sgd(1.0), backward_passes_per_step=2, average_aggregated_gradients=True)
    assert after_steps(averaged, 2 * rank, 4, 1, 2 * rank) == [0, -2.5, -2.5, -3.5]


def check_a_gradient_that_one_rank_lacks():
    """PyTorch alone records each batch anew: a rank without a gradient contributes zeros, and none waits."""
    if BACKEND != "torch":
        return
    optimizer = hvd.DistributedOptimizer(sgd(1.0, weight_decay=0.5))
    used, mine, unused = (weight(4.0, name=name) for name in ("used", "mine", "unused"))
    optimizer.apply([gradient(1), gradient(2) if hvd.rank() == 1 else None, None], [used, mine, unused])
    # Weight decay takes half, and the averages are 1 and 1. A variable without any gradient does not decay.
    assert [first(one) for one in (used, mine, unused)] == [1, 1, 4]


def check_local_layers():
    for scale, expected in ((True, 4), (False, 8)):
        shared, own = keras.layers.Dense(1, use_bias=False), keras.layers.Dense(1, use_bias=False)
        optimizer = hvd.PartialDistributedOptimizer(sgd(1.0), local_layers=own, scale_local_gradients=scale)
        for layer in (shared, own):
            layer.build((None, 2))
            layer.kernel.assign(np.zeros((2, 1)))
        values = [gradient(8 * hvd.rank(), (2, 1)), gradient(8 * hvd.rank(), (2, 1))]
        optimizer.apply(values, [shared.kernel, own.kernel])
        assert first(shared.kernel) == -4 and first(own.kernel) == -expected * hvd.rank()
    optimizer = hvd.DistributedOptimizer(sgd(1.0))
    variable = weight()
    optimizer.register_local_var(variable)
    optimizer.apply([gradient(8 * hvd.rank())], [variable])
    assert first(variable) == -4 * hvd.rank()
    accumulating = hvd.PartialDistributedOptimizer(sgd(1.0), local_layers=[own], backward_passes_per_step=2)
    own.kernel.assign(np.zeros((2, 1)))
    for _ in range(2):
        accumulating.apply([gradient(8 * hvd.rank(), (2, 1))], [own.kernel])
    assert first(own.kernel) == -8 * hvd.rank()


def check_local_layers_in_fit():
    keras.utils.set_random_seed(10 + hvd.rank())
    own = keras.layers.Dense(3)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7), own, keras.layers.Dense(1)])
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(0.01), local_layers=[own])
    made.compile(optimizer, "mse")
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=own.trainable_variables)
    before = numpy_of(own.weights)
    start.set_model(made)
    start.on_train_begin()
    assert all(np.array_equal(a, b) for a, b in zip(before, numpy_of(own.weights))), "local weights stay"
    made.fit(*my_data(), BATCH, 1, 0, [start], shuffle=False)
    shared = [one for layer in made.layers if layer is not own for one in layer.weights]
    assert alike_on_ranks(shared) and not alike_on_ranks(own.weights)


def check_process_sets():
    alone = hvd.add_process_set([1])
    assert after_steps(hvd.DistributedOptimizer(sgd(1.0), process_set=alone), 2 * hvd.rank()) == [-2 * hvd.rank()]
    assert hvd.remove_process_set(alone)


def check_a_rank_that_overflows():
    """Ranks skip a step together. The gradients are 4 and 8, the scale is 4, so a step is 1.5, and then 3."""
    scaled = keras.optimizers.LossScaleOptimizer(sgd(1.0), initial_scale=4.0)
    values = [4.0 * (hvd.rank() + 1)] * 3
    values[1] = float("inf") if hvd.rank() == 1 else values[1]
    optimizer = hvd.DistributedOptimizer(scaled)
    if BACKEND != "jax":
        assert after_steps(optimizer, *values) == [-1.5, -1.5, -4.5]
        return
    optimizer.build([weight()])  # on JAX, Keras has only a stateless form of this optimizer
    weights, state = [keras.ops.zeros(2)], [one.value for one in optimizer.variables]
    for value, expected in zip(values, [-1.5, -1.5, -4.5]):
        weights, state = optimizer.stateless_apply(state, [gradient(value)], weights)
        assert first(weights[0]) == expected


def check_the_state_of_a_built_optimizer_is_kept():
    plain, variable = keras.optimizers.Adam(0.1), weight(1.0)
    plain.apply([gradient(1)], [variable])
    wrapped = hvd.DistributedOptimizer(plain)
    assert type(wrapped).__name__ == "Adam" and isinstance(wrapped, type(plain))
    assert all(np.array_equal(a, b) for a, b in zip(numpy_of(plain.variables), numpy_of(wrapped.variables)))


def check_unsupported_arguments():
    wrap = hvd.DistributedOptimizer
    fails(ValueError, "Average or Sum", action=lambda: wrap(sgd(), op=hvd.Max))
    fails(ValueError, "already", action=lambda: wrap(wrap(sgd())))
    fails(ValueError, "gradient_predivide_factor", action=lambda: wrap(sgd(), gradient_predivide_factor=2, op=hvd.Sum))
    fails(ValueError, "backward_passes_per_step=0", action=lambda: wrap(sgd(), backward_passes_per_step=0))
    fails(ValueError, "gradient_accumulation_steps=3", "one of them",
          action=lambda: wrap(sgd(gradient_accumulation_steps=3), backward_passes_per_step=2))  # fmt: skip
    fails(ValueError, "groups=-1", action=lambda: wrap(sgd(), groups=-1))
    fails(ValueError, "not an optimizer", action=lambda: wrap("sgd"))
    fails(ValueError, "is not a layer", action=lambda: hvd.PartialDistributedOptimizer(sgd(), local_layers=[3]))
    fails(NotImplementedError, "BroadcastGlobalVariablesCallback(0)", action=lambda: hvd.broadcast_global_variables(0))
    inside = keras.optimizers.LossScaleOptimizer(wrap(sgd()))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    fails(ValueError, "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))",
          action=lambda: model(inside, 1).fit(*my_data(), 8, 1, 0, callbacks))  # fmt: skip


def check_other_shapes_on_one_rank():
    variable = weight(shape=(2 + hvd.rank(),))
    with pytest.raises(Exception) as caught:  # of the class that the backend gives errors of its steps
        hvd.DistributedOptimizer(sgd(1.0), name="shapes").apply([gradient(1, (2 + hvd.rank(),))], [variable])
    assert "shapes.0" in str(caught.value), caught.value
    hvd.allreduce(1.0)


# ---- Callbacks -------------------------------------------------------------------------------------------------------


def check_learning_rates_warm_up():
    """SGD with momentum on gradients of one: each update is -rate plus momentum times the last update, scaled with the
    rate."""
    inputs, labels = np.ones((32, 1), "float32"), np.zeros((32, 1), "float32")
    made = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    made.compile(hvd.DistributedOptimizer(sgd(0.2, momentum=0.5)), lambda truth, output: keras.ops.mean(output))
    rates, weights = [], []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(first(self.model.optimizer.learning_rate))
            weights.append(first(self.model.weights[0]))

    warm = hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2)
    halve = hvd.callbacks.LearningRateScheduleCallback(0.2, 0.5, start_epoch=2)
    history = made.fit(inputs, labels, 8, 3, 0, [warm, halve, Look()])
    grown = [0.1 + 0.1 * (batch + 1) / 8 for batch in range(8)]
    expected = [*grown, *[0.1] * 4]
    assert np.allclose(rates, expected, rtol=1e-6), rates
    assert np.allclose(history.history["lr"], [grown[3], 0.2, 0.1])
    update, last = 0.0, 0.2
    for batch, rate in enumerate(expected[:-1]):
        update, last = 0.5 * update * rate / last - rate, rate
        assert np.isclose(weights[batch + 1] - weights[batch], update, rtol=1e-4), (batch, weights)


def check_schedules():
    schedule = hvd.callbacks.LearningRateScheduleCallback
    fails(ValueError, "initial_lr", action=lambda: schedule(None, 1.0))
    made = model(hvd.DistributedOptimizer(sgd(0.5)), 1)
    inputs, labels = my_data()
    stairs = schedule(0.5, lambda epoch: 10.0**-epoch, end_epoch=2)
    history = made.fit(inputs, labels, BATCH, 3, 0, [stairs])
    assert np.allclose(history.history["lr"], [0.5, 0.05, 0.05])
    endless = schedule(0.5, lambda epoch: 1.0, staircase=False)
    endless.set_params({"steps": None})
    fails(ValueError, "steps_per_epoch", action=endless.on_train_begin)


def check_the_best_model_is_saved_by_rank_0():
    with tempfile.TemporaryDirectory() as folder:
        saves = hvd.callbacks.BestModelCheckpoint(monitor="loss")
        fails(ValueError, "filepath", action=lambda: train_together(
            hvd.DistributedOptimizer(sgd(0.01)), callbacks=[saves]))  # fmt: skip
        saves.filepath = os.path.join(folder, "best.keras")
        made, _ = train_together(hvd.DistributedOptimizer(sgd(0.01)), callbacks=[saves])
        assert os.path.exists(saves.filepath) == (hvd.rank() == 0)
        weights = hvd.callbacks.BestModelCheckpoint("loss", save_weights_only=True, filepath=folder + "/a.weights.h5")
        made.fit(*my_data(), BATCH, 1, 0, [weights])
        assert os.path.exists(weights.filepath) == (hvd.rank() == 0)
        if hvd.rank() == 0:
            assert type(keras.models.load_model(saves.filepath).optimizer).__name__ == "SGD"


# ---- Values and states -----------------------------------------------------------------------------------------------


def check_values():
    rank = hvd.rank()
    assert float(hvd.allreduce(rank + 1.0)) == 1.5
    assert hvd.allreduce([rank, 1], op=hvd.Sum).tolist() == [1, 2]
    assert hvd.allreduce(weight(2 * rank)).tolist() == [1, 1]
    assert hvd.allreduce(gradient(2 * rank), compression=hvd.Compression.fp16).tolist() == [1, 1]
    assert hvd.allreduce(gradient(2 * rank), average=False, prescale_factor=2, postscale_factor=0.5).tolist() == [2, 2]
    fails(ValueError, "supersedes", action=lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum))
    assert hvd.allgather(np.array([rank] * (rank + 1))).tolist() == [0, 1, 1]
    assert float(hvd.broadcast(rank + 5, 1)) == 6 and hvd.broadcast(gradient(rank), 1).tolist() == [1, 1]
    fails(ValueError, "root rank 7", action=lambda: hvd.broadcast(1, 7))
    part = hvd.reducescatter(np.arange(4.0), op=hvd.Sum).tolist()
    assert part == ([0, 2] if rank == 0 else [4, 6])
    fails(hvd.HorovodInternalError, "numbers", action=lambda: hvd.allreduce(np.zeros(rank + 1), name="numbers"))


def check_states():
    """Rank 0 alone assigns an attribute; then another model replaces the first."""
    state = hvd.elastic.KerasState(model(sgd(0.05), hvd.rank()), epoch=0)
    state._private = 1
    if hvd.rank() == 0:
        state.later = [1]
    state.sync()
    assert alike_on_ranks(state.model.weights)
    state.later.append(2)
    state._private = 2
    state.restore()
    assert state.later == [1] and state._private == 2
    other = model(sgd(0.05), 7)
    state.model = other
    before = numpy_of(other.weights)
    other.layers[0].kernel.assign(other.layers[0].kernel * 0)
    state.restore()
    assert state.model is other and all(np.array_equal(a, b) for a, b in zip(before, numpy_of(other.weights)))
    other.fit(*my_data(), BATCH, 1, 0)  # a step that takes over the memory of the variables
    state.restore()
    state.restore()
    assert all(np.array_equal(a, b) for a, b in zip(before, numpy_of(other.weights)))


def check_commits_during_an_epoch():
    made = model(hvd.DistributedOptimizer(sgd(0.05)), 3)
    state = hvd.elastic.KerasState(made, batch=0, epoch=0)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, np.array_equal(numpy_of(self.model.weights)[0], numpy_of(state._weights)[0])))

    callbacks = [hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.UpdateEpochStateCallback(state),
                 hvd.elastic.CommitStateCallback(state, batches_per_commit=2), Look()]  # fmt: skip
    made.fit(*my_data(), BATCH, 1, 0, callbacks, shuffle=False)
    assert [saved for _, saved in seen] == [False, True] * 3, seen
    assert (state.batch, state.epoch) == (0, 1)


def check_the_world_is_still_usable():
    assert farandole.is_initialized() and float(hvd.allreduce(1.0)) == 1


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("backend", keras_backends.INSTALLED)
def test_on_two_ranks(backend, check):
    keras_backends.require(sys.modules[__name__], backend, check)
