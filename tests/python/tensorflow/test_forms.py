"""farandole.tensorflow: the other operations, process sets, names, scaling and shapes."""

import sys

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from launch import checks_of, require
from test_tensorflow import REDUCIBLE, eager_and_graph, same


def check_allgather():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in [*REDUCIBLE, tf.bool]:
        mine = tf.cast(tf.fill([rank + 1, 2], rank), dtype)
        expected = np.concatenate([np.full((one + 1, 2), one) for one in range(size)])
        for run in eager_and_graph(hvd.allgather):
            same(run(mine), expected != 0 if dtype == tf.bool else expected, dtype)
    for run in eager_and_graph(lambda x: hvd.grouped_allgather([x, tf.cast(x[0], tf.int64)])):
        first, second = run(tf.fill([1, 3], float(rank)))
        same(first, np.repeat(np.arange(size), 3).reshape(size, 3), tf.float32)
        same(second, np.repeat(np.arange(size), 3), tf.int64)
    same(hvd.allgather(tf.zeros([0, 2])), np.zeros((0, 2)))
    assert hvd.grouped_allgather([]) == []


def check_broadcast():
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        for run in eager_and_graph(lambda x, root=root: hvd.broadcast(x, root)):
            same(run(tf.fill([2, 3], rank)), np.full((2, 3), root), tf.int32)
            same(run(tf.constant(rank == root)), True)
    for run in eager_and_graph(lambda x: hvd.grouped_broadcast([x, x * 2], 1)):
        first, second = run(tf.fill([2], float(rank)))
        same(first, [1, 1])
        same(second, [2, 2])


def check_alltoall():
    rank, size = hvd.rank(), hvd.size()
    for run in eager_and_graph(hvd.alltoall):
        same(run(tf.range(size) + 10 * rank), np.arange(size) * 10 + rank)
    splits = tf.range(1, size + 1)  # r + 1 rows for rank r
    for run in eager_and_graph(hvd.alltoall):
        rows, received = run(tf.fill([sum(range(size + 1)), 2], rank), splits)
        same(rows, np.repeat(np.arange(size), rank + 1)[:, None] * np.ones((1, 2)))
        same(received, np.full(size, rank + 1), tf.int32)
    rows, received = hvd.alltoall(tf.zeros([3]), [0] * size)
    same(rows, np.zeros(0))
    same(received, np.zeros(size))


def check_reducescatter():
    rank, size = hvd.rank(), hvd.size()
    rows = 2 * size + 1
    start, own = (0, 3) if rank == 0 else (2 * rank + 1, 2)
    whole = np.arange(rows * 2).reshape(rows, 2)
    for dtype in REDUCIBLE:
        for run in eager_and_graph(lambda x: hvd.reducescatter(x, op=hvd.Sum)):
            same(run(tf.cast(whole % 5 + rank, dtype)),
                 (whole % 5 * size + sum(range(size)))[start : start + own], dtype)  # fmt: skip
    same(hvd.reducescatter(tf.constant(whole * 1.0)), whole[start : start + own])  # Average is the default
    first, second = hvd.grouped_reducescatter([tf.constant(whole), tf.ones([size])], op=hvd.Sum)
    same(first, whole[start : start + own] * size, tf.int32 if whole.dtype == np.int32 else tf.int64)
    same(second, [size])
    assert hvd.grouped_reducescatter([]) == []


def check_scaling():
    size = hvd.size()
    for run in eager_and_graph(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)):
        same(run(tf.fill([3], 2.0)), np.full(3, 3.0 * size))
    same(hvd.allreduce(tf.fill([3], 5), op=hvd.Sum, prescale_factor=0.5), np.full(3, 2 * size))  # toward zero
    # The factors are doubles: as 32-bit numbers they would be wrong in the eighth digit.
    third = hvd.allreduce(tf.constant(3.0, tf.float64), op=hvd.Sum, prescale_factor=1 / 3)
    assert third.numpy() == float(size) * (3.0 * (1 / 3))


def check_compression():
    for kind in (hvd.Compression.fp16, hvd.Compression.bf16):
        for run in eager_and_graph(lambda x, kind=kind: hvd.allreduce(x, op=hvd.Sum, compression=kind)):
            same(run(tf.fill([4], 1.0 + hvd.rank())), np.full(4, sum(range(1, hvd.size() + 1))), tf.float32)
        same(hvd.allreduce(tf.fill([2], 7), op=hvd.Max, compression=kind), [7, 7], tf.int32)


def check_indexed_slices():
    rank, size = hvd.rank(), hvd.size()
    mine = tf.IndexedSlices(tf.fill([1, 2], float(rank)), tf.constant([rank]), tf.constant([size, 2]))
    for run in eager_and_graph(lambda: hvd.allreduce(mine, op=hvd.Sum)):
        same(tf.convert_to_tensor(run()), np.arange(size)[:, None] * np.ones((1, 2)))
    same(
        hvd.allreduce(mine).values, np.repeat(np.arange(size, dtype=np.float32) / np.float32(size), 2).reshape(size, 2)
    )
    sparse, dense = hvd.grouped_allreduce([mine, tf.ones([2])], op=hvd.Sum)
    assert isinstance(sparse, tf.IndexedSlices)
    same(dense, [size, size])
    for options in ({"op": hvd.Max}, {"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError):
            hvd.allreduce(mine, **options)


def check_numbers_at_run_time():
    @tf.function
    def numbers():
        return (hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op(), hvd.process_set_included_op(0))

    for number, expected in zip(numbers(), (hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank(), 1)):
        same(number, expected, tf.int32)


def check_process_sets():
    rank = hvd.rank()
    ranks = list(range(1, hvd.size()))
    part = hvd.add_process_set(ranks)
    if rank in ranks:
        for run in eager_and_graph(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=part)):
            same(run(tf.fill([2], rank)), [sum(ranks)] * 2)
        same(hvd.broadcast(tf.constant(rank), ranks[-1], process_set=part), ranks[-1])
    same(hvd.process_set_included_op(part.process_set_id), int(rank in ranks))
    same(hvd.size_op(part.process_set_id), len(ranks))
    hvd.remove_process_set(part)


def check_join_and_barrier():
    rank, size = hvd.rank(), hvd.size()
    for run in eager_and_graph(hvd.barrier):
        run()
    if rank == 0:
        same(hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="joined"), [1, 1])
        same(hvd.allreduce(tf.ones([2]), name="average"), np.full(2, np.float32(1) / np.float32(size)))
    last = hvd.join() if rank else tf.function(hvd.join)()
    assert last.dtype == tf.int32 and 0 <= int(last) < size
    same(hvd.allreduce(tf.ones([2]), op=hvd.Sum), [size, size])


def check_shapes_are_known_before_the_run():
    shapes = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def trace(x):
        y = tf.ones([4, 3])
        shapes["allreduce"] = hvd.allreduce(x).shape
        shapes["grouped"] = [one.shape for one in hvd.grouped_allreduce([x, y])]
        shapes["allgather"] = hvd.allgather(y).shape
        shapes["broadcast"] = hvd.broadcast(y, 0).shape
        shapes["reducescatter"] = hvd.reducescatter(y).shape
        shapes["alltoall"] = [one.shape for one in hvd.alltoall(y, tf.fill([hvd.size()], 1))]
        shapes["size"] = hvd.size_op().shape
        return x

    trace(tf.ones([hvd.size() * 2, 3]))
    assert {name: [list(one) for one in shape] if isinstance(shape, list) else list(shape)
            for name, shape in shapes.items()} == {
        "allreduce": [None, 3], "grouped": [[None, 3], [4, 3]], "allgather": [None, 3], "broadcast": [4, 3],
        "reducescatter": [None, 3], "alltoall": [[None, 3], [None]], "size": [],
    }  # fmt: skip

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def trace_unknown(x):
        gathered = hvd.allgather(x)
        assert gathered.shape.rank is None
        return gathered

    assert trace_unknown(tf.ones([1, 2])).shape == (hvd.size(), 2)


def check_control_flow():
    rank, size = hvd.rank(), hvd.size()

    @tf.function
    def loop(x):
        for _ in tf.range(5):  # a loop of the graph: five runs of one op
            x = hvd.allreduce(x)
        return x

    same(loop(tf.fill([2], 1.0 + rank)), np.full(2, (size + 1) / 2))

    @tf.function
    def branch(x, sums):
        return tf.cond(sums, lambda: hvd.allreduce(x, op=hvd.Sum), lambda: hvd.allreduce(x, op=hvd.Max))

    same(branch(tf.fill([2], rank), tf.constant(True)), np.full(2, sum(range(size))))
    same(branch(tf.fill([2], rank), tf.constant(False)), np.full(2, size - 1))


def check_a_dataset():
    data = tf.data.Dataset.range(4).map(lambda i: hvd.allreduce(i + hvd.rank(), op=hvd.Sum))
    assert [int(one) for one in data] == [i * hvd.size() + sum(range(hvd.size())) for i in range(4)]


def check_objects():
    rank, size = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"rank": rank}, 1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=0)(rank) == 0
    assert hvd.allgather_object([rank]) == [[one] for one in range(size)]


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
