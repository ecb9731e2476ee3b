"""farandole.tensorflow: every operation in eager mode and in tf.function. Sums are of small integers, so exact."""

import sys

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from launch import checks_of, require

REDUCIBLE = [tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64,
             tf.uint16, tf.uint32, tf.uint64]  # fmt: skip


def same(result, expected, dtype=None):
    """The result has exactly these elements, and the type."""
    expected = np.asarray(expected)
    assert result.dtype == (dtype or result.dtype) and tuple(result.shape) == expected.shape, (result, expected)
    wide = np.float64 if result.dtype.is_floating else np.int64
    assert np.array_equal(np.asarray(result).astype(wide), expected.astype(wide)), (result, expected)


def eager_and_graph(function):
    """Runs a check as it is and in a tf.function."""
    return function, tf.function(function)


def check_basics():
    hvd.init()
    assert hvd.is_initialized() and hvd.size() == len(hvd.global_process_set.ranks)
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == (0, 1, 2, 3, 4, 5)


def check_allreduce_of_every_type():
    rank, size = hvd.rank(), hvd.size()
    each = np.stack([np.arange(6) % 3 + one for one in range(size)]).reshape(size, 2, 3)
    for dtype in REDUCIBLE:
        mine = tf.cast(each[rank], dtype)

        def every(value):
            return [hvd.allreduce(value, op=op) for op in (hvd.Sum, hvd.Min, hvd.Max, hvd.Product)]

        for run in eager_and_graph(every):
            for result, expected in zip(run(mine), (each.sum(0), each.min(0), each.max(0), each.prod(0))):
                same(result, expected, dtype)
        same(hvd.allreduce(tf.cast(each[rank] * size, dtype), op=hvd.Average), each.sum(0), dtype)
    same(hvd.allreduce(tf.constant([rank == 0, True]), op=hvd.Max), [True, True], tf.bool)


def check_allreduce_forms():
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(size))
    mine = tf.fill([4], float(rank))
    for run in eager_and_graph(lambda value: hvd.allreduce(value)):
        same(run(mine), np.full(4, total / size))  # Average is the default
    same(hvd.allreduce(mine, average=False), np.full(4, total))
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    same(hvd.allreduce(rank, op=hvd.Sum), total)  # a number
    same(hvd.allreduce(np.full((2, 2), rank), op=hvd.Sum), np.full((2, 2), total))
    same(hvd.allreduce(tf.Variable([float(rank)]), op=hvd.Sum), [total])
    same(hvd.allreduce(tf.zeros([0, 3]), op=hvd.Sum), np.zeros((0, 3)))
    large = tf.range(300_000) % 7
    same(hvd.allreduce(large + rank, op=hvd.Sum), large.numpy() * size + total)
    same(mine, np.full(4, rank))  # nothing was in place


def check_grouped_allreduce():
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(size))

    def group(first, second, third):
        return hvd.grouped_allreduce([first, second, third], op=hvd.Sum)

    for run in eager_and_graph(group):
        first, second, third = run(tf.fill([3], float(rank)), tf.fill([2, 2], rank), tf.constant(rank, tf.int64))
        same(first, np.full(3, total), tf.float32)
        same(second, np.full((2, 2), total), tf.int32)
        same(third, total, tf.int64)
    assert hvd.grouped_allreduce([]) == []


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
