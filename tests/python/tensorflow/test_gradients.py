"""Gradients of farandole.tensorflow's operations, in eager mode and in tf.function, against the contract's formulas."""

import sys

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from launch import checks_of, require
from test_tensorflow import eager_and_graph, same


def gradient_of(operation, tensor, weight):
    """The gradient of sum(weight * operation(tensor)), computed eagerly and in a function."""

    def compute(tensor, weight):
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = tf.reduce_sum(operation(tensor) * weight)
        return tape.gradient(loss, tensor)

    return [run(tensor, weight) for run in eager_and_graph(compute)]


def ranks():
    return np.arange(hvd.size(), dtype=np.float32)


def check_allreduce():
    hvd.init()
    mine = tf.fill([3], float(hvd.rank()))
    weight = tf.fill([3], float(hvd.rank() + 1))
    for gradient in gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum), mine, weight):
        same(gradient, np.full(3, (ranks() + 1).sum()))
    for gradient in gradient_of(lambda x: hvd.allreduce(x), mine, weight * hvd.size()):
        same(gradient, np.full(3, (ranks() + 1).sum()))
    for gradient in gradient_of(
        lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), mine, weight
    ):
        same(gradient, np.full(3, 2 * (ranks() + 1).sum()))
    with pytest.raises(Exception, match="op=Average and op=Sum only"):
        gradient_of(lambda x: hvd.allreduce(x, op=hvd.Max), mine, weight)


def check_grouped_allreduce():
    first, second = tf.fill([2], 1.0), tf.fill([2], 2.0)

    def compute(first, second):
        with tf.GradientTape() as tape:
            tape.watch([first, second])
            one, two = hvd.grouped_allreduce([first, second], op=hvd.Sum)
            loss = tf.reduce_sum(one * float(hvd.rank())) + tf.reduce_sum(two * 3.0)
        return tape.gradient(loss, [first, second])

    for run in eager_and_graph(compute):
        one, two = run(first, second)
        same(one, np.full(2, ranks().sum()))
        same(two, np.full(2, 3.0 * hvd.size()))

    @tf.function
    def one_result_is_not_used(first, second):
        with tf.GradientTape() as tape:
            tape.watch([first, second])
            one, _ = hvd.grouped_allreduce([first, second], op=hvd.Sum)
            loss = tf.reduce_sum(one)
        return tape.gradient(loss, [first, second])

    one, two = one_result_is_not_used(first, second)
    same(one, np.full(2, hvd.size()))
    same(two, np.zeros(2))


def check_allgather():
    rank, size = hvd.rank(), hvd.size()
    mine = tf.fill([rank + 1, 2], 1.0)
    rows = sum(range(size + 1))
    weight = tf.reshape(tf.range(rows * 2, dtype=tf.float32), [rows, 2]) * (size * (rank + 1.0))
    average = np.arange(rows * 2).reshape(rows, 2) * (ranks() + 1).sum()
    start = sum(range(rank + 1))
    for gradient in gradient_of(hvd.allgather, mine, weight):
        same(gradient, average[start : start + rank + 1])
    for gradient in gradient_of(lambda x: hvd.grouped_allgather([x, 2 * x])[0], mine, weight):
        same(gradient, average[start : start + rank + 1])


def check_broadcast():
    mine, weight = tf.fill([2], 1.0), tf.fill([2], float(hvd.size() * (hvd.rank() + 1)))
    root = hvd.size() - 1
    for gradient in gradient_of(lambda x: hvd.broadcast(x, root), mine, weight):
        same(gradient, np.full(2, (ranks() + 1).sum() if hvd.rank() == root else 0))


def check_alltoall():
    rank, size = hvd.rank(), hvd.size()
    mine = tf.fill([2 * size + 1, 2], 1.0)  # the last row is not sent
    splits = [2] * size
    weight = tf.fill([2 * size, 2], float(rank + 1))
    expected = np.concatenate([np.repeat(ranks() + 1, 2), [0.0]])[:, None] * np.ones((1, 2))
    for gradient in gradient_of(lambda x: hvd.alltoall(x, splits)[0], mine, weight):
        same(gradient, expected)
    for gradient in gradient_of(hvd.alltoall, mine[:-1], weight):
        same(gradient, expected[:-1])


def check_reducescatter():
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    mine = tf.fill([rows], 1.0)
    own = 3 if rank == 0 else 2
    weight = tf.fill([own], float(rank + 1))
    joined = np.concatenate([[1.0] * 3, *[[one + 1.0] * 2 for one in range(1, size)]])
    for gradient in gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Sum), mine, weight):
        same(gradient, joined * size)
    for gradient in gradient_of(lambda x: hvd.reducescatter(x), mine, weight):
        same(gradient, joined)
    for gradient in gradient_of(lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Sum)[1], mine, weight):
        same(gradient, joined * size)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
