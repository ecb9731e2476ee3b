"""horovod_keras_digits: a Keras training script for Horovod, with Keras 3 on TensorFlow, PyTorch or JAX.

    pip install . bindings/horovod
    KERAS_BACKEND=tensorflow horovodrun -np 2 python examples/horovod_keras_digits.py     # or torch, or jax

Callbacks come from the module for Keras: horovod.keras, or horovod.tensorflow.keras. The data are the 1797 handwritten
digits of scikit-learn.
"""

import argparse

import horovod.keras as hvd
import keras
import numpy as np
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="Digits with Keras and Horovod")
parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--lr", type=float, default=0.05, help="of one rank; scaled by their number")
parser.add_argument("--warmup-epochs", type=int, default=2)
parser.add_argument("--save", help="where rank 0 saves the best model: a path that ends in .keras")


def load(batch_size):
    """This rank's part of each batch of training digits, and all test digits."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[..., None]
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[300:], order[:300]
    steps = len(train) // (batch_size * hvd.size())
    batches = train[: steps * batch_size * hvd.size()].reshape(steps, hvd.size(), batch_size)
    mine = batches[:, hvd.rank()].reshape(-1)
    return images[mine], digits.target[mine], images[test], digits.target[test]


def build():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    args = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(42 + hvd.rank())
    x_train, y_train, x_test, y_test = load(args.batch_size)

    model = build()
    # The global batch grows with the ranks, and so does the learning rate.
    scaled_lr = args.lr * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(scaled_lr, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    callbacks = [
        # all ranks begin with the weights of rank 0
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # before all callbacks that use metrics
        hvd.callbacks.MetricAverageCallback(),
    ]
    if args.warmup_epochs:
        callbacks.append(hvd.callbacks.LearningRateWarmupCallback(scaled_lr, warmup_epochs=args.warmup_epochs))
    if args.save and hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(args.save, monitor="val_loss", save_best_only=True))

    model.fit(
        x_train,
        y_train,
        batch_size=args.batch_size,
        epochs=args.epochs,
        shuffle=False,  # load() has shuffled, alike on all ranks
        validation_data=(x_test, y_test),
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    norm = np.sqrt(sum(float((one.astype("float64") ** 2).sum()) for one in model.get_weights()))
    assert np.ptp(hvd.allgather(np.array([norm]))) == 0, "ranks have different weights"
    if hvd.rank() == 0:
        print(f"final loss {loss:.6f} accuracy {accuracy:.4f} weights {norm:.7f} on {hvd.size()} ranks")


if __name__ == "__main__":
    main()
