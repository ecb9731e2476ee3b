"""fit on two ranks equals fit in one process on the joint batch, in all ways in which Keras runs it."""

import functools
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
    STEPS,
    alike_on_ranks,
    data,
    distance,
    model,
    my_data,
    numpy_of,
    train_alone,
    train_together,
)
from launch import checks_of

TOLERANCE = 1e-6  # float32: ranks add the halves of a batch in another order
BACKEND = keras.config.backend()


def adam(**options):
    # Clipping applies to the averages: clipped parts would not average to the clipped whole.
    return keras.optimizers.Adam(0.01, clipnorm=0.1, **options)


@functools.cache
def adam_alone(epochs=2):
    """What one process trains in the default form. All other forms of fit give the same."""
    return train_alone(adam(), epochs=epochs)


def same_as_alone(wrap=hvd.DistributedOptimizer, **options):
    together, history = train_together(wrap(adam()), **options)
    alone, expected = adam_alone(options.get("epochs", 2))
    assert alike_on_ranks(together.variables), "ranks have different weights"
    assert distance(together, alone) < TOLERANCE, (options, distance(together, alone))
    return history, expected


def check_init():
    try:
        hvd.DistributedOptimizer(keras.optimizers.SGD()).apply([keras.ops.zeros(1)], [keras.Variable(np.zeros(1))])
    except hvd.basics.errors.Error as error:
        assert "use hvd.init()" in str(error)
    else:
        raise AssertionError("an optimizer trained without init")
    hvd.init()


def check_fit_and_metrics():
    metrics = hvd.callbacks.MetricAverageCallback()
    together, history = train_together(hvd.DistributedOptimizer(adam()), callbacks=[metrics])
    alone, expected = adam_alone()
    assert alike_on_ranks([*together.weights, *together.optimizer.variables]) and distance(together, alone) < TOLERANCE
    assert np.allclose(history["loss"], expected["loss"], rtol=1e-5), (history, expected)
    assert np.ptp(hvd.allgather(np.array(history["loss"][:1]))) == 0, "the metric is the average of all ranks"


def check_run_eagerly():
    same_as_alone(run_eagerly=True)


def check_jit_compile_auto():
    same_as_alone(jit_compile="auto")


def check_steps_per_execution():
    if BACKEND == "torch":
        # Keras refuses it.
        fails(ValueError, "steps_per_execution", action=lambda: same_as_alone(steps_per_execution=3))
    else:
        same_as_alone(steps_per_execution=3)


def check_accumulation_communicates_once_an_update():
    alone, _ = train_alone(adam(gradient_accumulation_steps=3), epochs=1)
    for plain, options in (
        (lambda: adam(gradient_accumulation_steps=3), {}),
        (adam, dict(backward_passes_per_step=3, average_aggregated_gradients=True)),
    ):
        before = farandole.metrics()["named_operations"]
        together, _ = train_together(hvd.DistributedOptimizer(plain(), **options), epochs=1)
        during = farandole.metrics()["named_operations"] - before
        assert distance(together, alone) < TOLERANCE
        gradients, state = len(together.weights), len(together.weights) + len(together.optimizer.variables)
        presence = STEPS if BACKEND == "torch" else 0
        assert during == gradients * STEPS // 3 + state + 1 + presence, (during, gradients, state)


def check_passes_are_added_up_by_default():
    together, _ = train_together(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), backward_passes_per_step=3))
    alone, _ = train_alone(keras.optimizers.SGD(0.03, gradient_accumulation_steps=3))
    assert distance(together, alone) < TOLERANCE


def check_options_of_the_reduction():
    same_as_alone(lambda one: hvd.DistributedOptimizer(one, groups=3, gradient_predivide_factor=2.0))
    together, _ = train_together(hvd.DistributedOptimizer(adam(), compression=hvd.Compression.bf16))
    alone, _ = adam_alone()
    assert alike_on_ranks(together.variables) and 0 < distance(together, alone) < 0.05


def check_sum():
    together, _ = train_together(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), op=hvd.Sum))
    alone, _ = train_alone(keras.optimizers.SGD(0.01 * hvd.size()))
    assert distance(together, alone) < TOLERANCE


def check_a_model_of_mixed_precision():
    """A gradient that is infinite on one rank is skipped on all. compile() must not wrap the optimizer again."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        made = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), 10 + hvd.rank())
        assert isinstance(made.optimizer, keras.optimizers.LossScaleOptimizer)
        inputs, labels = my_data()
        if hvd.rank() == 1:
            inputs[2 * BATCH] = 60000  # overflows in the third step
            labels[2 * BATCH] = 60000
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        made.fit(inputs, labels, BATCH, 1, 0, [callback], shuffle=False)
    finally:
        keras.config.set_dtype_policy("float32")
    done = int(numpy_of([made.optimizer.iterations])[0])
    assert 0 < done < STEPS and alike_on_ranks([*made.weights, *made.optimizer.variables]), done
    assert all(np.isfinite(one).all() for one in numpy_of(made.weights))


def check_unused_variables():
    """A layer whose output the loss does not use, on all ranks."""

    class Partly(keras.Model):
        def __init__(self):
            super().__init__()
            self.used, self.unused = keras.layers.Dense(1), keras.layers.Dense(4)

        def call(self, inputs):
            self.unused(inputs)
            return self.used(inputs)

    keras.utils.set_random_seed(1)
    made = Partly()
    made.compile(hvd.DistributedOptimizer(adam()), "mse")
    made.fit(*my_data(), BATCH, 1, 0, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)], shuffle=False)
    assert alike_on_ranks(made.weights) and int(numpy_of([made.optimizer.iterations])[0]) == STEPS


def check_embeddings():
    """Gradients of an embedding have few rows: TensorFlow passes only those."""
    inputs = np.arange(STEPS * BATCH * hvd.size()).reshape(-1, 1) % 11
    labels = (inputs % 3).astype("float32")
    mine = np.arange(len(inputs)).reshape(STEPS, hvd.size(), BATCH)[:, hvd.rank()].reshape(-1)

    def trained(optimizer, inputs, labels, batch):
        keras.utils.set_random_seed(4)
        layers = [keras.Input((1,)), keras.layers.Embedding(12, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
        made = keras.Sequential(layers)
        made.compile(optimizer, "mse")
        made.fit(inputs, labels, batch, 2, 0, shuffle=False)
        return made

    alone = trained(keras.optimizers.SGD(0.1), inputs, labels, hvd.size() * BATCH)
    for as_dense in (False, True):
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), sparse_as_dense=as_dense)
        together = trained(optimizer, inputs[mine], labels[mine], BATCH)
        assert alike_on_ranks(together.weights) and distance(together, alone) < TOLERANCE


def check_dropout_differs_between_ranks():
    inputs, labels = data()  # all ranks have the same data

    def trained(rate):
        keras.utils.set_random_seed(10 + hvd.rank())
        made = keras.Sequential([keras.Input((5,)), keras.layers.Dropout(rate), keras.layers.Dense(1)])
        made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        loss = made.fit(inputs, labels, BATCH, 1, 0, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)], shuffle=False)
        assert alike_on_ranks(made.weights)
        return hvd.allgather(np.array(loss.history["loss"]))

    assert np.ptp(trained(0.0)) == 0 < np.ptp(trained(0.5))


def check_saved_and_loaded():
    together, _ = train_together(hvd.DistributedOptimizer(adam()))
    alone, _ = train_alone(adam())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        together.save(path)
        loaded, plain = hvd.load_model(path), keras.models.load_model(path)
    assert type(plain.optimizer).__module__.startswith("keras."), "it loads without this package"
    assert type(loaded.optimizer).__name__ == "Adam" and distance(loaded, together) == 0
    assert int(numpy_of([loaded.optimizer.iterations])[0]) == 2 * STEPS
    loaded.fit(*my_data(), BATCH, 1, 0, shuffle=False)
    alone.fit(*data(), hvd.size() * BATCH, 1, 0, shuffle=False)
    assert distance(loaded, alone) < TOLERANCE, "the optimizer continues with its state"


def check_another_model_on_one_rank_is_an_error():
    def fit(units):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(one) for one in units]
        made = keras.Sequential([keras.Input((5,)), *layers])
        made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
        return made.fit(*my_data(), BATCH, 1, 0, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

    other = 1 - hvd.rank()
    numbers = {0: 4, 1: 6}  # weights and biases; SGD has two variables more
    fails(farandole.MismatchError, f"rank {hvd.rank()} has {numbers[hvd.rank()] + 2} variables and rank {other} has",
          "the same model", action=lambda: fit([3, 1] if hvd.rank() == 0 else [3, 3, 1]))  # fmt: skip
    fails(farandole.MismatchError, "keras.0", action=lambda: fit([3 + hvd.rank(), 1]))
    hvd.allreduce(1.0)  # the world is still usable


def check_other_distributions_are_refused():
    inputs, labels = my_data()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            fails(ValueError, "tf.distribute", "farandole run",
                  action=lambda: hvd.DistributedOptimizer(keras.optimizers.SGD()))  # fmt: skip
        compiled = model(hvd.DistributedOptimizer(keras.optimizers.SGD()), 1, jit_compile=True)
        fails(ValueError, "jit_compile=False", action=lambda: compiled.fit(inputs, labels, BATCH, 1, 0, callbacks))
        devices = tf.config.list_physical_devices
        tf.config.list_physical_devices = lambda: [tf.config.PhysicalDevice("/gpu:0", "GPU")]
        try:  # where "auto" means True
            compiled.fit(inputs, labels, BATCH, 1, 0, callbacks)
        finally:
            tf.config.list_physical_devices = devices
        assert not compiled.jit_compile and alike_on_ranks(compiled.weights)
        compiled = model(hvd.DistributedOptimizer(keras.optimizers.SGD()), 1, jit_compile=True)
        fails(tf.errors.UnimplementedError, "jit_compile=False", action=lambda: compiled.fit(inputs, labels, BATCH))
    if BACKEND == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
        try:
            fails(ValueError, "set_distribution(None)", "farandole run",
                  action=lambda: hvd.DistributedOptimizer(keras.optimizers.SGD()))  # fmt: skip
        finally:
            keras.distribution.set_distribution(None)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("backend", keras_backends.INSTALLED)
def test_on_two_ranks(backend, check):
    keras_backends.require(sys.modules[__name__], backend, check)
