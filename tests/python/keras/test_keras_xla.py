"""fit with jit_compile=True on TensorFlow, whose steps XLA compiles together with the reduction of the gradients."""

import sys

import farandole
import farandole.keras as hvd
import keras
import keras_backends
import launch
import numpy as np
import pytest
from keras_models import BATCH, STEPS, alike_on_ranks, distance, model, my_data, numpy_of, train_alone, train_together
from launch import checks_of

TOLERANCE = 1e-6  # float32: ranks add the halves of a batch in another order
XLA = {"FARANDOLE_TENSORFLOW_XLA": "1"}


def adam(**options):
    return keras.optimizers.Adam(0.01, clipnorm=0.1, **options)


def same_as_alone(wrap=hvd.DistributedOptimizer, **options):
    together, _ = train_together(wrap(adam()), jit_compile=True, **options)
    alone, _ = train_alone(adam(), jit_compile=True, **options)
    assert together.jit_compile, "the step ran without XLA"
    assert alike_on_ranks(together.variables) and distance(together, alone) < TOLERANCE, distance(together, alone)


def check_fit():
    hvd.init()
    before = farandole.metrics()["named_operations"]
    same_as_alone(epochs=1)
    weights, state = 4, 4 + 10  # the state of Adam: a counter, the rate, and two variables for each weight
    assert farandole.metrics()["named_operations"] - before == weights * STEPS + state + 2, "one call a weight and step"


def check_options():
    same_as_alone(steps_per_execution=3)
    same_as_alone(lambda one: hvd.DistributedOptimizer(one, groups=3, gradient_predivide_factor=2.0))


def check_accumulation():
    options = dict(backward_passes_per_step=3, average_aggregated_gradients=True)
    together, _ = train_together(hvd.DistributedOptimizer(adam(), **options), jit_compile=True)
    alone, _ = train_alone(adam(gradient_accumulation_steps=3), jit_compile=True)
    assert alike_on_ranks(together.variables) and distance(together, alone) < TOLERANCE


def check_mixed_precision():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        made = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), 10 + hvd.rank(), jit_compile=True)
        inputs, labels = my_data()
        if hvd.rank() == 1:  # overflows in the third step
            inputs[2 * BATCH] = labels[2 * BATCH] = 60000
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        made.fit(inputs, labels, BATCH, 1, 0, [callback], shuffle=False)
    finally:
        keras.config.set_dtype_policy("float32")
    done = int(numpy_of([made.optimizer.iterations])[0])
    assert 0 < done < STEPS and alike_on_ranks([*made.weights, *made.optimizer.variables]), done


def check_embeddings():
    keras.utils.set_random_seed(4)
    layers = [keras.Input((1,)), keras.layers.Embedding(12, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    made = keras.Sequential(layers)
    made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    inputs = (np.arange(STEPS * BATCH).reshape(-1, 1) + hvd.rank()) % 11
    made.fit(inputs, (inputs % 3).astype("float32"), BATCH, 1, 0, shuffle=False)
    assert alike_on_ranks(made.weights)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_on_two_ranks(check):
    variables = keras_backends.variables("tensorflow") | XLA
    launch.require(sys.modules[__name__], 2, check, variables, keras_backends.DEADLINE_S, fresh=True)
