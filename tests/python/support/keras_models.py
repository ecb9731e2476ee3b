"""Data and models of the tests of farandole.keras: ranks train with halves of batches, one process with whole ones."""

import farandole.keras as hvd
import keras
import numpy as np

STEPS, BATCH = 6, 8


def data():
    random = np.random.default_rng(3)
    inputs = random.normal(0, 1, (STEPS * BATCH * hvd.size(), 5)).astype("float32")
    return inputs, random.normal(0, 1, (len(inputs), 1)).astype("float32")


def my_data():
    """This rank's part of each batch."""
    inputs, labels = data()
    mine = np.arange(len(inputs)).reshape(STEPS, hvd.size(), BATCH)[:, hvd.rank()].reshape(-1)
    return inputs[mine], labels[mine]


def model(optimizer, seed, **options):
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(1)])
    made.compile(optimizer, "mse", **options)
    return made


def numpy_of(variables):
    return [np.array(keras.ops.convert_to_numpy(one)) for one in variables]


def distance(one, other):
    """The greatest difference between the weights of two models."""
    return max(float(np.abs(a - b).max()) for a, b in zip(numpy_of(one.weights), numpy_of(other.weights)))


def alike_on_ranks(variables):
    """Whether all ranks have the same bits."""
    flat = np.concatenate([one.ravel().astype("float64") for one in numpy_of(variables)])
    every = hvd.allgather(flat).reshape(hvd.size(), -1)
    return all(np.array_equal(flat, other) for other in every)


def train_together(wrapped, epochs=2, callbacks=(), **options):
    """A model whose ranks begin with different weights. The batches are halves of those of train_alone()."""
    made = model(wrapped, 10 + hvd.rank(), **options)
    inputs, labels = my_data()
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    history = made.fit(inputs, labels, BATCH, epochs, 0, [start, *callbacks], shuffle=False)
    return made, history.history


def train_alone(plain, epochs=2, **options):
    made = model(plain, 10, **options)
    history = made.fit(*data(), hvd.size() * BATCH, epochs, 0, shuffle=False)
    return made, history.history


def gradient(value, shape=(2,)):
    return keras.ops.full(shape, float(value), dtype="float32")


def weight(value=0.0, shape=(2,), name=None):
    return keras.Variable(np.full(shape, value, "float32"), name=name)


def first(variable):
    return float(numpy_of([variable])[0].reshape(-1)[0])
