"""Functions with jit_compile=True under FARANDOLE_TENSORFLOW_XLA=1: the same bits as without XLA."""

import os
import signal
import sys

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from expect import fails
from farandole.tensorflow import compiled
from farandole.tensorflow.elastic import loss_of
from launch import checks_of, free_port, launch, require
from test_tensorflow import REDUCIBLE, same

SETTING = {"FARANDOLE_TENSORFLOW_XLA": "1"}
INVALID, DISAGREE = tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError


def numbers(*shape):
    """Random numbers, others on each rank."""
    return tf.constant(np.random.default_rng(hvd.rank()).normal(size=shape).astype("float32"))


def compiled_by_xla(function):
    return tf.function(function, jit_compile=True)


def same_bits(function, *arguments):
    """The results of the function without XLA, which have the same bits as those with XLA."""
    expected = tf.nest.flatten(tf.function(function)(*arguments))
    results = tf.nest.flatten(compiled_by_xla(function)(*arguments))
    assert len(results) == len(expected)
    for result, other in zip(results, expected):
        assert result.dtype == other.dtype and result.shape == other.shape, (result, other)
        assert result.numpy().tobytes() == other.numpy().tobytes(), (result, other)
    return expected


FORMS = {
    "a sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
    "an average": lambda x: hvd.allreduce(x, prescale_factor=0.5, postscale_factor=3.0),
    "a group": lambda x: hvd.grouped_allreduce([x, 2 * x[:1], x[0, 0]], op=hvd.Sum),
    "a broadcast": lambda x: hvd.broadcast(x, 1),
    "a gather": lambda x: hvd.allgather(x),
    "a group of gathers": lambda x: hvd.grouped_allgather([x, x[:1]]),
    "parts of a sum": lambda x: hvd.reducescatter(x, op=hvd.Sum),
    "uneven parts of an average": lambda x: hvd.reducescatter(x[:3]),
    "a group of parts": lambda x: hvd.grouped_reducescatter([x, x[:3]]),
    "an exchange": lambda x: hvd.alltoall(x),
}


def check_operations_and_gradients():
    hvd.init()
    for form in FORMS.values():

        def with_gradient(x, form=form):
            with tf.GradientTape() as tape:
                tape.watch(x)
                results = tf.nest.flatten(form(x))
                loss = sum(tf.reduce_sum(one * one) * (1.0 + hvd.rank()) for one in results)
            return results, tape.gradient(loss, x)

        same_bits(with_gradient, numbers(4, 3))
    for operation in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        same_bits(lambda x, operation=operation: hvd.allreduce(x, op=operation), numbers(5))
    same(same_bits(lambda x: hvd.allreduce(x, op=hvd.Sum), tf.fill([2], hvd.rank() + 1))[0], [3, 3])


def check_every_type():
    for dtype in REDUCIBLE:
        mine = tf.cast(tf.range(6) + hvd.rank(), dtype)
        same(same_bits(lambda x: hvd.allreduce(x, op=hvd.Sum), mine)[0], 2 * np.arange(6) + 1, dtype)
    same_bits(lambda x: hvd.broadcast(x, 1), tf.constant([hvd.rank() == 1, False]))
    same_bits(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16), numbers(7))


def check_numbers_of_ranks():
    of_ranks = compiled_by_xla(lambda: [hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op()])
    assert [int(one) for one in of_ranks()] == [2, hvd.rank(), 2, hvd.rank()]


def check_process_sets():
    alone = hvd.add_process_set([1])
    form = compiled_by_xla(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=alone))
    if hvd.rank() == 1:
        same(form(tf.ones([2])), [1, 1])
        root = compiled_by_xla(lambda x: hvd.broadcast(x, 0, process_set=alone))
        fails(INVALID, "invalid root rank 0", action=lambda: root(tf.ones([2])))
    else:
        fails(INVALID, "Rank 0 is not a member", action=lambda: form(tf.ones([2])))
    hvd.remove_process_set(alone)
    if hvd.rank() == 1:
        fails(DISAGREE, "make the tf.function again", action=lambda: form(tf.ones([2])))


def check_loops_and_branches():
    def loop(x):
        for _ in tf.range(5):
            x = hvd.allreduce(x, op=hvd.Sum) / 2.0
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: hvd.allreduce(x * 2), lambda: x)

    def unchanging(x):
        total = tf.zeros_like(x)
        for _ in tf.range(3):
            total += hvd.allreduce(x)  # the same in each round
        return total

    same_bits(loop, numbers(5))
    same_bits(unchanging, numbers(5))


def check_a_training_step():
    """The tape, rows of an embedding and variables that are broadcast, in one function."""

    def trained(jit_compile):
        table = tf.Variable(tf.reshape(tf.range(12.0), [6, 2]) + hvd.rank())
        scale = tf.Variable([1.0, 2.0])

        @tf.function(jit_compile=jit_compile)
        def step(rows):
            hvd.broadcast_variables([table, scale], 0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, rows) * scale)
            tape = hvd.DistributedGradientTape(tape)
            for variable, gradient in zip([table, scale], tape.gradient(loss, [table, scale])):
                variable.assign_sub(0.5 * tf.convert_to_tensor(gradient))
            return loss

        losses = [step(tf.constant([hvd.rank(), 3])) for _ in range(3)]
        return [*losses, table.read_value(), scale.read_value()]

    for one, other in zip(trained(True), trained(False)):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def check_many_operations():
    form = compiled_by_xla(lambda x: [hvd.allreduce(x + index, op=hvd.Sum) for index in range(100)])
    for _ in range(5):
        for index, one in enumerate(form(tf.fill([2], hvd.rank()))):
            same(one, [1 + 2 * index] * 2)


def check_what_is_refused():
    x = tf.ones([4])
    refused = tf.errors.UnimplementedError
    fails(refused, "barrier", action=lambda: compiled_by_xla(hvd.barrier)())
    fails(refused, "join", action=lambda: compiled_by_xla(hvd.join)())
    any_shape = tf.function(hvd.allreduce, input_signature=[tf.TensorSpec([None])], jit_compile=True)
    fails(INVALID, "not known when the function is traced", action=lambda: any_shape(x))
    fails(INVALID, "with splits", action=lambda: compiled_by_xla(lambda x: hvd.alltoall(x, [1, 3]))(x))
    fails(INVALID, "not divisible", action=lambda: compiled_by_xla(hvd.alltoall)(x[:3]))
    fails(INVALID, "complex64", action=lambda: compiled_by_xla(hvd.allreduce)(tf.ones([2], tf.complex64)))
    fails(DISAGREE, "no rows", action=lambda: compiled_by_xla(hvd.allgather)(tf.constant(1.0)))


def check_disagreements_are_errors():
    def sum_of(x):
        return hvd.allreduce(x, op=hvd.Sum, name="sum")

    form = compiled_by_xla(sum_of)
    fails(DISAGREE, "allreduce.sum_of.sum", "[2]", "[3]", action=lambda: form(tf.ones([2 + hvd.rank()])))
    rows = compiled_by_xla(lambda x: hvd.allgather(x, name="rows"))
    fails(DISAGREE, "the program was compiled for", action=lambda: rows(tf.ones([2 + hvd.rank()])))
    same(form(tf.ones([2])), [2, 2])


def check_other_devices_are_refused():
    hidden = tf.config.list_physical_devices
    tf.config.list_physical_devices = lambda: [tf.config.PhysicalDevice("/gpu:0", "GPU")]
    try:
        assert "has a GPU" in compiled.refusal.__wrapped__()
    finally:
        tf.config.list_physical_devices = hidden


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_on_two_ranks(check):
    require(sys.modules[__name__], 2, check, SETTING)


def meets_in_opposite_orders():
    """Each call needs the result of the one before. The report names both calls, and they fail."""

    def both(x):
        for name in ("a", "b") if hvd.rank() == 0 else ("b", "a"):
            x = hvd.allreduce(x, name=name)
        return x

    mine, other = ("a", 1) if hvd.rank() == 0 else ("b", 0)
    fails(tf.errors.UnknownError, f"allreduce.both.{mine}", f"rank {other}",
          action=lambda: compiled_by_xla(both)(tf.ones([2])))  # fmt: skip
    hvd.barrier()


def in_two_worlds():
    """A function belongs to the world in which it was traced. Before init there is none."""
    form = compiled_by_xla(lambda x: hvd.allreduce(x, op=hvd.Sum))
    fails((DISAGREE, ValueError), "use hvd.init()", action=lambda: form(tf.ones([2])))
    hvd.init()
    same(form(tf.ones([2])), [2, 2])
    meets_in_opposite_orders()
    hvd.shutdown()
    fails(DISAGREE, "make the tf.function again", action=lambda: form(tf.ones([2])))
    os.environ["FARANDOLE_RENDEZVOUS"] = os.environ["SECOND_RENDEZVOUS"]
    hvd.init()
    fails(DISAGREE, "make the tf.function again", action=lambda: form(tf.ones([2])))
    same(compiled_by_xla(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.ones([2])), [2, 2])


def dies():
    hvd.init()
    form = compiled_by_xla(lambda x: hvd.allreduce(x, op=hvd.Sum, name="grad"))
    form(tf.ones([2]))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = loss_of(fails(tf.errors.UnknownError, "rank 1", action=lambda: form(tf.ones([2]))))
    assert isinstance(error, hvd.HorovodInternalError) and error.culprit_rank == 1


def test_another_world():
    stall = {"FARANDOLE_STALL_WARNING_S": "0.5", "FARANDOLE_STALL_SHUTDOWN_S": "1.5"}
    launch(2, in_two_worlds, {**SETTING, **stall, "SECOND_RENDEZVOUS": f"tcp://127.0.0.1:{free_port()}"})


def test_a_rank_that_dies():
    launch(2, dies, SETTING, codes=[0, -signal.SIGKILL])
