"""train_keras: the five calls of Horovod's API around Keras's fit, with Keras 3: on PyTorch, or as KERAS_BACKEND says.

    farandole run -np 2 -- python train_keras.py
    farandole run -np 2 -- python train_keras.py --checkpoint s3://bucket/run-7     # pip install "farandole[s3]"

Mistakes of the tutorials for Kubernetes that this replaces: they import horovod.tensorflow and use its callbacks, which
are in horovod.tensorflow.keras (here horovod.keras); they scale neither the learning rate nor the data by the number of
ranks; and each rank prints and saves.
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import farandole.keras as hvd
import keras
import numpy as np
from farandole import checkpoint


def points(count):
    """Random points of ten classes, the same on every rank."""
    random = np.random.default_rng(0)
    centers, labels = random.normal(0, 1, (10, 64)), random.integers(0, 10, count)
    return (centers[labels] + random.normal(0, 1, (count, 64))).astype("float32"), labels


class SaveCallback(keras.callbacks.Callback):
    """A checkpoint after each epoch: the weights, and the optimizer's state."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def on_epoch_end(self, epoch, logs=None):
        checkpoint.save(self.where, epoch + 1, {"state.npz": lambda file: np.savez(file, *arrays_of(self.model))})


def arrays_of(model):
    return [keras.ops.convert_to_numpy(one) for one in [*model.weights, *model.optimizer.variables]]


def resume(where, model):
    """The epoch to continue with: every rank reads the last checkpoint of rank 0."""
    found = checkpoint.load(where) if where else None
    if not found:
        return 0
    model.optimizer.build(model.trainable_variables)
    with np.load(found.open("state.npz")) as state:
        for number, variable in enumerate([*model.weights, *model.optimizer.variables]):
            variable.assign(state[f"arr_{number}"])
    return found.step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02, help="of one rank; scaled by their number")
    parser.add_argument("--warmup-epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument(
        "--checkpoint", metavar="PLACE", help="resumed from, and saved to after each epoch: a folder or a URI"
    )
    options = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())
    inputs, labels = points(2048)
    count = len(labels) // hvd.size()  # as many for each rank
    mine = slice(hvd.rank() * count, (hvd.rank() + 1) * count)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(options.lr * hvd.size(), momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    first = resume(options.checkpoint, model)

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),  # before all callbacks that use metrics
        hvd.callbacks.LearningRateWarmupCallback(options.lr * hvd.size(), options.warmup_epochs),
    ]
    if options.checkpoint:
        callbacks.append(SaveCallback(options.checkpoint))
    if hvd.rank() == 0:
        callbacks.append(
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: print(f"epoch {epoch + 1} loss={logs['loss']:.6f}", flush=True)
            )
        )
    model.fit(
        inputs[mine], labels[mine], options.batch_size, options.epochs, 0, callbacks, initial_epoch=first
    )  # verbose 0: one rank prints, and only the metric that Katib reads


if __name__ == "__main__":
    main()
