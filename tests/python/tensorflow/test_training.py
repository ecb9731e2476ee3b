"""farandole.tensorflow's tape, optimizers and broadcasts. Values are powers of two and small integers, so exact."""

import sys

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from launch import checks_of, require
from test_tensorflow import same


def loss_of(variables, factor):
    """A loss whose gradients are factor * (1, 2, 3, ...)."""
    return tf.add_n([tf.reduce_sum(one) * factor * (index + 1.0) for index, one in enumerate(variables)])


def gradients_of(variables, factor, **options):
    """The gradients of all ranks, from a distributed tape."""
    with tf.GradientTape() as tape:
        loss = loss_of(variables, factor)
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)


def both_ways(function):
    yield function()
    yield tf.function(function)()


def make(count=3):
    return [tf.Variable(tf.zeros([index + 1, 2]), name=f"v{index}") for index in range(count)]


def factor():
    return float(2 * hvd.rank() + 2)  # its average over 2 ranks is 3, over 3 ranks 4


def average():
    return float(hvd.size() + 1)


def expect_gradients(gradients, scale=1.0):
    for index, gradient in enumerate(gradients):
        same(gradient, np.full((index + 1, 2), average() * (index + 1) * scale))


def check_tape():
    hvd.init()
    variables = make()
    for gradients in both_ways(lambda: gradients_of(variables, factor())):
        expect_gradients(gradients)
    for options in ({"groups": 2}, {"num_groups": 1}, {"groups": [variables[:2]]}, {"groups": 100},
                    {"gradient_predivide_factor": 2.0}, {"compression": hvd.Compression.fp16}):  # fmt: skip
        for gradients in both_ways(lambda options=options: gradients_of(variables, factor(), **options)):
            expect_gradients(gradients)
    expect_gradients(gradients_of(variables, factor(), op=hvd.Sum), hvd.size())


def check_tape_is_a_tape():
    variables = make(2)
    tape = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    assert isinstance(tape, tf.GradientTape)
    with tape:
        loss = loss_of(variables, factor())
    expect_gradients(tape.gradient(loss, variables))
    expect_gradients(tape.gradient(loss, variables, use_generic_names=True))
    both = tape.gradient(loss, {"a": variables[0], "b": [variables[1]]})
    expect_gradients([both["a"], both["b"][0]])
    same(tape.gradient(loss, variables[1]), np.full((2, 2), 2 * average()))
    with pytest.raises(ValueError, match="tf.GradientTape"):
        hvd.DistributedGradientTape(3)
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="groups"):
        hvd.DistributedGradientTape(tf.GradientTape(), groups="all")


def check_strategies_are_refused():
    variables = make(1)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope(), pytest.raises(ValueError, match="tf.distribute"):
        gradients_of(variables, factor())


def check_mixed_precision():
    """bfloat16 and float16 gradients beside float32 ones: each is reduced in its type."""
    variables = [tf.Variable(tf.zeros([2], dtype)) for dtype in (tf.bfloat16, tf.float16, tf.float32)]

    def compute():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32)) for one in variables]) * factor()
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    for run in (compute, tf.function(compute)):
        for gradient, variable in zip(run(), variables):
            same(gradient, np.full(2, average()), variable.dtype)


def check_unused_variables():
    variables = make(3)

    def compute():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[0]) * factor()
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    for run in (compute, tf.function(compute)):
        first, *others = run()
        same(first, np.full((1, 2), average()))
        assert others == [None, None]


def check_sparse_gradients():
    rank, size = hvd.rank(), hvd.size()
    table = tf.Variable(tf.zeros([size + 1, 2]))

    def compute(**options):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, size]))
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, **options).gradient(loss, table)

    expected = np.ones((size + 1, 2)) * ([[1]] * size + [[size]])
    for options, kind in (({}, tf.IndexedSlices), ({"sparse_as_dense": True}, tf.Tensor)):
        for run in (compute, tf.function(compute)):
            gradient = run(**options)
            assert isinstance(gradient, kind)
            same(tf.convert_to_tensor(gradient), expected)


def check_local_sources():
    variables = make(2)

    def compute(scales):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, factor())
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scales)
        tape.register_local_source(variables[1])
        return tape.gradient(loss, variables)

    for scales in (True, False):
        for first, second in both_ways(lambda scales=scales: compute(scales)):
            same(first, np.full((1, 2), average()))
            same(second, np.full((2, 2), np.float32(2 * factor()) / np.float32(hvd.size() if scales else 1)))
    layer = tf.keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2]))) * factor()
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layer, scale_local_gradients=False)
    same(tape.gradient(loss, layer.trainable_variables)[0], np.full((2, 1), factor()))
    with pytest.raises(ValueError, match="not a Keras layer"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[3])


def check_two_tapes_in_one_function():
    first, second = make(2), make(2)

    @tf.function
    def step():
        return gradients_of(first, factor()), gradients_of(second, 2 * factor())

    one, two = step()
    expect_gradients(one)
    expect_gradients(two, 2)


def check_broadcast_variables():
    rank = hvd.rank()
    variables = [tf.Variable(tf.fill([2, index + 1], float(rank))) for index in range(3)]
    variables += [tf.Variable(rank), tf.Variable([rank == 1]), tf.Variable(tf.zeros([0]))]
    hvd.broadcast_variables(variables, root_rank=1)
    same(variables[0], np.ones((2, 1)))
    same(variables[3], 1, tf.int32)
    same(variables[4], [True])

    @tf.function
    def in_a_function():
        hvd.broadcast_variables(variables[:3], 0)

    variables[2].assign(tf.fill([2, 3], float(rank)))
    variables[0].assign(tf.fill([2, 1], float(rank)))
    in_a_function()
    same(variables[0], np.zeros((2, 1)))
    same(variables[2], np.zeros((2, 3)))
    variables[1].assign(tf.fill([2, 2], float(rank)))
    (value,) = hvd.broadcast_([variables[1]], 1)
    same(value, np.ones((2, 2)))
    with pytest.raises(RuntimeError, match="does not support eager"):
        hvd.broadcast_global_variables(0)


def check_a_graph_of_tensorflow_1():
    rank, size = hvd.rank(), hvd.size()
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        variable = v1.get_variable("weight", initializer=tf.fill([2], float(rank)), use_resource=True)
        loss = tf.reduce_sum(variable) * (rank + 1)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(2.0), op=hvd.Sum)
        step = optimizer.minimize(loss)
        with v1.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(1)]) as session:
            assert session.run(variable).tolist() == [1, 1]
            session.run(step)
            assert session.run(variable).tolist() == [1 - size * (size + 1)] * 2
    with tf.Graph().as_default():
        variable = v1.get_variable("weight", initializer=tf.zeros([2]), use_resource=True)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum, backward_passes_per_step=2
        )
        step = optimizer.minimize(tf.reduce_sum(variable) * (rank + 1))
        total = size * (size + 1) // 2
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for expected in (0, -2 * total, -2 * total, -4 * total):
                session.run(step)
                assert session.run(variable).tolist() == [expected] * 2
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=0)
    with pytest.raises(ValueError, match="Keras optimizer"):
        hvd.DistributedOptimizer(3)


def check_sync_batch_normalization():
    rank, size = hvd.rank(), hvd.size()
    rows = [one + 2 for one in range(size)]
    whole = np.random.default_rng(1).normal(3, 2, (sum(rows), 4)).astype(np.float32)
    weight = np.random.default_rng(2).normal(0, 1, whole.shape).astype(np.float32)
    start = sum(rows[:rank])
    mine = slice(start, start + rows[rank])

    def train(layer, x, w):
        layer.build((None, 4))
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(y * w)
        return y, *tape.gradient(loss, [x, *layer.trainable_variables]), *layer.non_trainable_variables

    y, dx, dgamma, dbeta, mean, variance = train(tf.keras.layers.BatchNormalization(), whole, weight)
    one, two, three, four, five, six = train(hvd.SyncBatchNormalization(), whole[mine], weight[mine])
    np.testing.assert_allclose(one, y[mine], atol=1e-5)
    np.testing.assert_allclose(two, dx[mine], atol=1e-5)
    np.testing.assert_allclose(hvd.allreduce(three, op=hvd.Sum), dgamma, atol=1e-4)
    np.testing.assert_allclose(hvd.allreduce(four, op=hvd.Sum), dbeta, atol=1e-4)
    np.testing.assert_allclose(five, mean, atol=1e-6)
    np.testing.assert_allclose(six, variance, atol=1e-5)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)
