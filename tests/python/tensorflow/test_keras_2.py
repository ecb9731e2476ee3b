"""farandole.tensorflow.keras for Keras 2: fit on two ranks equals fit in one process on the joint batch."""

import os
import sys
import tempfile

import farandole
import farandole.tensorflow as tf_hvd
import numpy as np
import pytest
import tensorflow as tf
from expect import fails
from launch import checks_of, require

# Keras 2 is a part of the TensorFlow of the older rows. In the newest environment it is the package tf_keras.
VARIABLES = {"TF_USE_LEGACY_KERAS": "1", "FARANDOLE_TENSORFLOW_XLA": "1"}
RELEASE = tuple(map(int, tf.__version__.split(".")[:2]))
STEPS, BATCH = 6, 8
TOLERANCE = 1e-6  # float32: ranks add the halves of a batch in another order


def hvd():
    """The module, whose import decides by TF_USE_LEGACY_KERAS."""
    import horovod.tensorflow.keras

    return horovod.tensorflow.keras


def whole_data():
    random = np.random.default_rng(3)
    inputs = random.normal(0, 1, (STEPS * BATCH * 2, 5)).astype("float32")
    return inputs, random.normal(0, 1, (len(inputs), 1)).astype("float32")


def my_data():
    """This rank's half of each batch."""
    inputs, labels = whole_data()
    mine = np.arange(len(inputs)).reshape(STEPS, 2, BATCH)[:, tf_hvd.rank()].reshape(-1)
    return inputs[mine], labels[mine]


def model(optimizer, seed, **options):
    tf.keras.utils.set_random_seed(seed)
    layers = [tf.keras.Input((5,)), tf.keras.layers.Dense(7, "tanh"), tf.keras.layers.Dense(1)]
    made = tf.keras.Sequential(layers)
    made.compile(optimizer, "mse", **options)
    return made


def together(wrapped, callbacks=(), **options):
    made = model(wrapped, 10 + tf_hvd.rank(), **options)
    start = hvd().callbacks.BroadcastGlobalVariablesCallback(0)
    history = made.fit(*my_data(), BATCH, 2, 0, [start, *callbacks], shuffle=False)
    return made, history.history


def alone(plain):
    made = model(plain, 10)
    made.fit(*whole_data(), 2 * BATCH, 2, 0, shuffle=False)
    return made


def distance(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one.get_weights(), other.get_weights()))


def alike(made):
    flat = np.concatenate([one.ravel() for one in made.get_weights()])
    every = hvd().allgather(flat).reshape(2, -1)
    return np.array_equal(every[0], every[1])


_alone = {}  # models that one process has trained, by their optimizer


def same_as_alone(plain, wrap=None, callbacks=(), **options):
    trained, history = together((wrap or hvd().DistributedOptimizer)(plain()), callbacks, **options)
    expected = _alone.get(plain) or _alone.setdefault(plain, alone(plain()))
    assert alike(trained) and distance(trained, expected) < TOLERANCE, (options, distance(trained, expected))
    return trained, history


def new():
    return tf.keras.optimizers.Adam(0.01, clipnorm=0.1)


def legacy():
    return tf.keras.optimizers.legacy.Adam(0.01, clipnorm=0.1)


def check_it_is_keras_2():
    assert not hasattr(tf.keras, "ops") and "keras2" in hvd().DistributedOptimizer.__module__
    optimizer = hvd().DistributedOptimizer(new())
    pairs = [(tf.zeros(1), tf.Variable([0.0]))]
    fails(farandole.Error, "use hvd.init()", action=lambda: optimizer.apply_gradients(pairs))
    hvd().init()


def check_fit():
    _, history = same_as_alone(new, callbacks=[hvd().callbacks.MetricAverageCallback()])
    assert np.ptp(hvd().allgather(np.array(history["loss"][:1]))) == 0, "the metric is the average of all ranks"
    same_as_alone(legacy, steps_per_execution=3)
    same_as_alone(new, run_eagerly=True)


def check_options():
    wrap = hvd().DistributedOptimizer
    same_as_alone(new, lambda one: wrap(one, groups=3, gradient_predivide_factor=2.0))
    sgd = tf.keras.optimizers.SGD
    trained, _ = together(wrap(sgd(0.01), op=hvd().Sum))
    assert distance(trained, alone(sgd(0.02))) < TOLERANCE
    trained, _ = together(wrap(new(), compression=hvd().Compression.fp16))
    assert alike(trained) and 0 < distance(trained, _alone[new]) < 0.05


def check_accumulation():
    for plain in (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD):
        options = dict(backward_passes_per_step=STEPS, average_aggregated_gradients=True)
        before = farandole.metrics()["named_operations"]
        trained, _ = together(hvd().DistributedOptimizer(plain(0.1), **options))
        state = len(trained.weights) + len(tuple(_variables(trained.optimizer)))
        assert farandole.metrics()["named_operations"] - before == 2 * 4 + state + 1, "one reduction an epoch"
        expected = model(plain(0.1), 10)
        expected.fit(*whole_data(), STEPS * 2 * BATCH, 2, 0, shuffle=False)
        assert distance(trained, expected) < TOLERANCE
        assert int(trained.optimizer.iterations) == 2


def _variables(optimizer):
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def check_mixed_precision():
    """A gradient that is infinite on one rank is skipped on all."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        made = model(hvd().DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), 10 + tf_hvd.rank())
        inputs, labels = my_data()
        if tf_hvd.rank() == 1:
            inputs[2 * BATCH] = labels[2 * BATCH] = 60000  # overflows in the third step
        start = hvd().callbacks.BroadcastGlobalVariablesCallback(0)
        made.fit(inputs, labels, BATCH, 1, 0, [start], shuffle=False)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert isinstance(made.optimizer, tf.keras.mixed_precision.LossScaleOptimizer)
    assert float(made.optimizer.loss_scale) == made.optimizer.initial_scale / 2, "one step was skipped"
    assert alike(made) and all(np.isfinite(one).all() for one in made.get_weights())


def check_local_layers():
    tf.keras.utils.set_random_seed(10 + tf_hvd.rank())
    made = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    mine = made.layers[0]
    made.compile(hvd().PartialDistributedOptimizer(tf.keras.optimizers.SGD(0.1, 0.9), local_layers=mine), "mse")
    start = hvd().callbacks.BroadcastGlobalVariablesCallback(0, local_variables=mine.trainable_variables)
    made.fit(*my_data(), BATCH, 1, 0, [start], shuffle=False)
    kernels = [hvd().allgather(layer.kernel.numpy()[None]) for layer in made.layers]
    assert (kernels[0][0] != kernels[0][1]).all() and (kernels[1][0] == kernels[1][1]).all()


def check_saved_and_loaded():
    for plain in (new, legacy):
        trained, _ = together(hvd().DistributedOptimizer(plain()))
        expected = alone(plain())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.h5")
            trained.save(path)
            loaded, without = hvd().load_model(path), tf.keras.models.load_model(path)
        assert type(without.optimizer).__name__ == "Adam" and not hasattr(type(without.optimizer), "_farandole")
        assert distance(loaded, trained) == 0 and int(loaded.optimizer.iterations) == 2 * STEPS
        loaded.fit(*my_data(), BATCH, 1, 0, shuffle=False)
        expected.fit(*whole_data(), 2 * BATCH, 1, 0, shuffle=False)
        assert distance(loaded, expected) < TOLERANCE, "the optimizer continues with its state"


def check_callbacks():
    callbacks = hvd().callbacks
    for plain in (tf.keras.optimizers.SGD, tf.keras.optimizers.legacy.SGD):
        rates = []
        note = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs, rates=rates: rates.append(logs["lr"]))
        trained, _ = together(hvd().DistributedOptimizer(plain(0.2, 0.5)),
                              [callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2), note])  # fmt: skip
        assert np.allclose(rates, [0.15, 0.2]) and alike(trained), rates
    with tempfile.TemporaryDirectory() as folder:
        best = callbacks.BestModelCheckpoint(monitor="loss")
        fails(ValueError, "filepath", action=lambda: together(hvd().DistributedOptimizer(new()), [best]))
        best.filepath = os.path.join(folder, "best.h5")
        together(hvd().DistributedOptimizer(new()), [callbacks.MetricAverageCallback(), best])
        assert os.path.exists(best.filepath) == (tf_hvd.rank() == 0)


def check_elastic_state():
    made = model(hvd().DistributedOptimizer(new()), tf_hvd.rank())
    state = hvd().elastic.KerasState(made, batch=0, epoch=tf_hvd.rank())
    state.sync()
    assert alike(made) and state.epoch == 0
    before = made.get_weights()
    commit, count = hvd().elastic.CommitStateCallback(state, STEPS), hvd().elastic.UpdateEpochStateCallback(state)
    made.fit(*my_data(), BATCH, 1, 0, [commit, count], shuffle=False)
    assert state.epoch == 1
    made.set_weights(before)
    state.restore()
    assert any((a != b).any() for a, b in zip(before, made.get_weights())) and alike(made)


def check_what_is_refused():
    again = hvd().DistributedOptimizer(new())
    fails(ValueError, "already", action=lambda: hvd().DistributedOptimizer(again))
    fails(ValueError, "is not an optimizer", action=lambda: hvd().DistributedOptimizer("adam"))
    fails(ValueError, "Average or Sum", action=lambda: hvd().DistributedOptimizer(new(), op=hvd().Adasum))
    inside = model(tf.keras.mixed_precision.LossScaleOptimizer(again), 1)
    fails(ValueError, "must be wrapped by it", action=lambda: inside.fit(
        *my_data(), BATCH, 1, 0, [hvd().callbacks.BroadcastGlobalVariablesCallback(0)]))  # fmt: skip
    other = tf.keras.Sequential([tf.keras.Input((5,)), *[tf.keras.layers.Dense(1) for _ in range(1 + tf_hvd.rank())]])
    other.compile(hvd().DistributedOptimizer(new()), "mse")
    fails(farandole.MismatchError, "the same model", action=lambda: other.fit(
        *my_data(), BATCH, 1, 0, [hvd().callbacks.BroadcastGlobalVariablesCallback(0)]))  # fmt: skip


def check_jit_compile():
    """FARANDOLE_TENSORFLOW_XLA=1 is set."""
    if RELEASE >= (2, 19):
        trained, _ = same_as_alone(new, jit_compile=True)
        assert trained.jit_compile
    else:
        fails(ValueError, "2.19", action=lambda: together(hvd().DistributedOptimizer(new()), jit_compile=True))


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_on_two_ranks(check):
    require(sys.modules[__name__], 2, check, VARIABLES, 240, fresh=True)
