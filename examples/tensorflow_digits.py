"""tensorflow_digits: a training loop of TensorFlow 2 on several ranks, with the calls of horovod.tensorflow.

    pip install ".[tensorflow]" scikit-learn
    farandole run -np 2 python examples/tensorflow_digits.py

The data are the 1797 handwritten digits of scikit-learn. Each step takes one batch, of which each rank computes its
share, so that any number of ranks trains the same model as one process does, but for the rounding of sums.
"""

import argparse

import farandole.tensorflow as hvd
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="Digits with TensorFlow")
parser.add_argument("--batch-size", type=int, default=60, help="of all ranks together; a multiple of their number")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
parser.add_argument("--save", help="a file for the weights, written by rank 0")


class Net(tf.Module):
    """Two layers, made of variables, so that it needs no other package."""

    def __init__(self):
        super().__init__()
        self.hidden = tf.Variable(tf.random.normal([64, 64], stddev=0.1))
        self.hidden_bias = tf.Variable(tf.zeros([64]))
        self.output = tf.Variable(tf.random.normal([64, 10], stddev=0.1))
        self.output_bias = tf.Variable(tf.zeros([10]))

    def __call__(self, images):
        hidden = tf.nn.relu(images @ self.hidden + self.hidden_bias)
        return hidden @ self.output + self.output_bias


def load():
    digits = load_digits()
    images, labels = digits.data.astype(np.float32) / 16, digits.target.astype(np.int32)
    order = np.random.default_rng(1).permutation(len(images))
    train, test = order[300:], order[:300]
    return (images[train], labels[train]), (images[test], labels[test])


def batches(images, labels, size, epoch):
    """This rank's share of each batch, in an order that is the same on all ranks."""
    order = np.random.default_rng(epoch).permutation(len(images))
    for begin in range(0, len(order) - size + 1, size):
        mine = order[begin : begin + size][hvd.rank() :: hvd.size()]
        yield tf.constant(images[mine]), tf.constant(labels[mine])


def main():
    args = parser.parse_args()
    hvd.init()
    tf.random.set_seed(hvd.rank())  # ranks begin with other weights
    model = Net()
    hvd.broadcast_variables(model.trainable_variables, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.reduce_mean(losses)
        tape = hvd.DistributedGradientTape(tape, compression=compression)  # averages the gradients of all ranks
        for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            variable.assign_sub(args.lr * gradient)
        return hvd.allreduce(loss, name="loss")

    (images, labels), (test_images, test_labels) = load()
    for epoch in range(args.epochs):
        for share in batches(images, labels, args.batch_size, epoch):
            loss = step(*share)
        guesses = tf.argmax(model(tf.constant(test_images)), 1).numpy()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {(guesses == test_labels).mean():.3f}", flush=True)
    weights = [variable.numpy() for variable in model.trainable_variables]
    for other in hvd.allgather_object(weights):
        assert all(np.array_equal(*pair) for pair in zip(weights, other)), "ranks have different weights"
    if hvd.rank() == 0:
        print(f"final accuracy {(guesses == test_labels).mean():.4f} on {hvd.size()} ranks")
        if args.save:
            np.savez(args.save, *weights)


if __name__ == "__main__":
    main()
