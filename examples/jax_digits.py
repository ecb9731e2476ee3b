"""jax_digits: data-parallel training with JAX and optax.

    pip install jax optax scikit-learn
    python examples/jax_digits.py                         # one rank
    farandole run -np 2 python examples/jax_digits.py     # two ranks share each batch

The data are the 1797 handwritten digits of scikit-learn. Any number of ranks trains on the same global batches, each
rank on its share, so the result is that of one rank up to rounding.
"""

import argparse
import json

import farandole.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

TEST_IMAGES = 297


def load():
    """(training images, labels), (test images, labels); shuffled the same way on every rank."""
    digits = load_digits()
    order = np.random.RandomState(1).permutation(len(digits.target))
    images, labels = digits.data[order].astype("float32") / 16, digits.target[order]
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES])


def make_parameters(seed):
    """Two dense layers: 64 pixels, 128 hidden units, 10 classes."""
    first, second = jax.random.split(jax.random.PRNGKey(seed))
    return {
        "hidden": {"w": jax.random.normal(first, (64, 128)) / 8, "b": jnp.zeros(128)},
        "classes": {"w": jax.random.normal(second, (128, 10)) / 11, "b": jnp.zeros(10)},
    }


def predict(params, images):
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["classes"]["w"] + params["classes"]["b"]


def loss_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels).mean()


def my_share(batch):
    """This rank's part of a global batch."""
    return batch[hvd.rank() :: hvd.size()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=60, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes loss and accuracy there")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")

    hvd.init()
    (images, labels), (test_images, test_labels) = load()
    # Ranks begin with other parameters, as after a random start, and then take those of rank 0.
    optimizer = hvd.distributed_optimizer(optax.adam(options.lr))
    params = hvd.broadcast_variables(make_parameters(seed=hvd.rank()), root_rank=0)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)  # reduces the gradients of all ranks
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss, name="loss")

    for epoch in range(options.epochs):
        order = np.random.RandomState(100 + epoch).permutation(len(labels))
        losses = []
        for start in range(0, len(order) - options.batch_size + 1, options.batch_size):
            mine = my_share(order[start : start + options.batch_size])
            params, state, loss = step(params, state, images[mine], labels[mine])
            losses.append(loss)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses):.4f}", flush=True)

    right = (predict(params, my_share(test_images)).argmax(1) == my_share(test_labels)).sum()
    accuracy = int(hvd.allreduce(right, name="right", op=hvd.Sum)) / len(test_labels)
    if hvd.rank() == 0:
        print(f"jax_digits: {hvd.size()} ranks, loss {np.mean(losses):.4f}, test accuracy {accuracy:.3f}")
        if options.json:
            weights = [np.asarray(one).astype(float).sum() for one in jax.tree_util.tree_leaves(params)]
            with open(options.json, "w") as file:
                json.dump({"loss": float(np.mean(losses)), "accuracy": accuracy, "weights": weights}, file)


if __name__ == "__main__":
    main()
