"""Errors of farandole.tensorflow: each situation of the contract, eagerly and in tf.function, equal on all ranks."""

import os
import signal
import sys
import threading
import time

import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from farandole.tensorflow.elastic import loss_of
from farandole.tensorflow.library import last_loss
from farandole.tensorflow.versions import release
from launch import checks_of, free_port, launch, require
from test_tensorflow import same

INVALID = tf.errors.InvalidArgumentError
DISAGREE = tf.errors.FailedPreconditionError
ENDED = tf.errors.UnknownError


def by_rank(first, others):
    """The first value on rank 0, the second on all others."""
    return first if hvd.rank() == 0 else others


def ones(*shape, dtype=tf.float32):
    return tf.ones(shape, dtype)


# Ranks disagree: the call has no effect, all ranks raise, with the tensor and two ranks, and the job continues.
DISAGREEMENTS = [
    ("types", ["a", "float32", "int32"],
     lambda: hvd.allreduce(ones(3, dtype=by_rank(tf.float32, tf.int32)), name="a")),
    ("shapes: allreduce", ["b", "[17, 2]", "[18, 2]"], lambda: hvd.allreduce(ones(by_rank(17, 18), 2), name="b")),
    ("shapes: adasum", ["c", "[17]", "[18]"],
     lambda: hvd.allreduce(ones(by_rank(17, 18)), name="c", op=hvd.Adasum)),
    ("shapes: broadcast", ["d", "[17]", "[18]"], lambda: hvd.broadcast(ones(by_rank(17, 18)), 0, name="d")),
    ("shapes: reducescatter", ["e", "[17]", "[18]"], lambda: hvd.reducescatter(ones(by_rank(17, 18)), name="e")),
    ("dimensions: allgather", ["f", "[2]", "[2, 1]"], lambda: hvd.allgather(ones(*by_rank((2,), (2, 1))), name="f")),
    ("rows: allgather", ["g", "[2, 3]", "[2, 4]"], lambda: hvd.allgather(ones(2, by_rank(3, 4)), name="g")),
    ("rows: alltoall", ["h", "3]", "4]"], lambda: hvd.alltoall(ones(hvd.size(), by_rank(3, 4)), name="h")),
    ("prescale", ["i", "prescale", "0.5"],
     lambda: hvd.allreduce(ones(2), name="i", prescale_factor=by_rank(1.0, 0.5))),
    ("postscale", ["j", "postscale", "0.5"],
     lambda: hvd.allreduce(ones(2), name="j", postscale_factor=by_rank(1.0, 0.5))),
    ("sum and average: reducescatter", ["k", "sum", "average"],
     lambda: hvd.reducescatter(ones(4), name="k", op=by_rank(hvd.Sum, hvd.Average))),
    ("reductions", ["l", "min", "max"], lambda: hvd.allreduce(ones(2), name="l", op=by_rank(hvd.Min, hvd.Max))),
    ("reductions: adasum", ["m", "sum", "adasum"],
     lambda: hvd.allreduce(ones(2), name="m", op=by_rank(hvd.Sum, hvd.Adasum))),
    ("roots", ["n", "root 0", "root 1"], lambda: hvd.broadcast(ones(2), by_rank(0, 1), name="n")),
    ("a member of a group", ["o", "_2of2", "[3]", "[4]"],
     lambda: hvd.grouped_allreduce([ones(2), ones(by_rank(3, 4))], name="o")),
]  # fmt: skip

# Invalid arguments: raised at once, without waiting.
FAULTS = [
    ("no rows: allgather", DISAGREE, ["dimension"], lambda: hvd.allgather(tf.constant(1.0))),
    ("no rows: alltoall", DISAGREE, ["dimension"], lambda: hvd.alltoall(tf.constant(1.0))),
    ("no rows: reducescatter", DISAGREE, ["does not support scalar inputs"],
     lambda: hvd.reducescatter(tf.constant(1.0))),
    *[(f"reducescatter with {name}", tf.errors.AbortedError, ["AVERAGE and SUM"],
       lambda name=name: hvd.reducescatter(ones(4), op=getattr(hvd, name)))
      for name in ("Min", "Max", "Product", "Adasum")],
    ("a root that is no rank", INVALID, ["invalid root rank 99"], lambda: hvd.broadcast(ones(1), 99)),
    ("a negative root", INVALID, ["invalid root rank -1"], lambda: hvd.broadcast(ones(1), -1)),
    ("a set that is not registered", INVALID, ["has not been registered"],
     lambda: hvd.allreduce(ones(1), process_set=hvd.ProcessSet([0]))),
    ("splits of another type", INVALID, ["32-bit integer"],
     lambda: hvd.alltoall(ones(8), tf.ones([hvd.size()], tf.int64))),
    ("splits beyond the rows", INVALID, ["greater than the first dimension"],
     lambda: hvd.alltoall(ones(8), [9] * hvd.size())),
    ("negative splits", INVALID, ["negative"], lambda: hvd.alltoall(ones(8), [-1] * hvd.size())),
    ("splits too many", INVALID, ["number of workers"], lambda: hvd.alltoall(ones(8), [1] * (hvd.size() + 1))),
    ("rows that do not divide", INVALID, ["splits not provided"], lambda: hvd.alltoall(ones(2 * hvd.size() + 1))),
    ("a type without rule", (TypeError, INVALID), ["complex64"], lambda: hvd.allreduce(ones(2, dtype=tf.complex64))),
    ("an average of truth values", INVALID, ["average", "bool"], lambda: hvd.allreduce(ones(2, dtype=tf.bool))),
    ("both average and op", ValueError, ["supersedes"], lambda: hvd.allreduce(ones(2), average=True, op=hvd.Sum)),
    ("no reduction", ValueError, ["99"], lambda: hvd.allreduce(ones(2), op=99)),
    ("no tensor", ValueError, ["object"], lambda: hvd.allreduce(object())),
]  # fmt: skip


def expect_error(situation, kind, words, action):
    with pytest.raises(kind) as caught:
        action()
    text = getattr(caught.value, "message", None) or str(caught.value)
    print("ROW", situation, type(caught.value).__name__, text.split("\n")[0], sep="\t", flush=True)
    for word in words:
        assert word in text, f"{situation}: {word!r} is not in {text!r}"
    return text


def alive():
    same(hvd.allreduce(ones(2), op=hvd.Sum), np.full(2, hvd.size()))


def in_graph(action):
    return tf.function(action, autograph=False)


def check_before_init():
    for name in ("rank", "size"):
        expect_error(f"{name} before init", ValueError, ["use hvd.init()"], getattr(hvd, name))
    for name, action in (
        ("a collective", lambda: hvd.allreduce(ones(1))),
        ("barrier", hvd.barrier),
        ("size_op", hvd.size_op),
        ("join", hvd.join),
    ):
        for run in (action, in_graph(action)):
            expect_error(f"{name} before init", DISAGREE, ["has not been initialized; use hvd.init()"], run)
    hvd.init()


def check_disagreements():
    for situation, words, action in DISAGREEMENTS:
        for run in (action, in_graph(action)):
            text = expect_error(situation, DISAGREE, [*words, "rank 0", "rank 1"], run)
            own = text[text.index("rank 0") :].split("\n")[0].split(" [Op")[0]
            assert hvd.allgather_object(own) == [own] * hvd.size(), "all ranks raise the same text"
            alive()


def check_faults():
    for situation, kind, words, action in FAULTS:
        for run in (action, in_graph(action)):
            expect_error(situation, kind, words, run)
    alive()


def check_ranks_outside_a_set():
    members = hvd.add_process_set([0])
    action = lambda: hvd.allreduce(ones(1), process_set=members)  # noqa: E731
    for run in (action, in_graph(action)):
        if members.included():
            same(run(), [1])
        else:
            expect_error("not a member", INVALID, [f"Rank {hvd.rank()} is not a member"], run)
    if members.included():
        expect_error("a root outside", INVALID, ["invalid root rank 1"],
                     lambda: hvd.broadcast(ones(1), 1, process_set=members))  # fmt: skip
    traced = in_graph(lambda: hvd.allreduce(ones(1), process_set=members))
    if members.included():
        traced()
    hvd.remove_process_set(members)
    if hvd.rank() == 0:
        expect_error("a removed set", INVALID, ["does not exist, or has not been registered"], traced)


def check_a_name_in_flight():
    """Two operations of one name at a time: two calls of a function that has named its operation, in another one."""
    inner = tf.function(lambda x: hvd.allreduce(x, name="twice", op=hvd.Sum))
    outer = tf.function(lambda x, y: (inner(x), inner(y)))
    if hvd.rank() == 0:
        expect_error("a name in flight", INVALID, ["twice", "in flight"], lambda: outer(ones(2), 2 * ones(2)))
    else:
        time.sleep(1)  # rank 0 submits both before the first can complete
        assert inner(ones(2)).shape == (2,)
    alive()


def check_operations_that_fail_after_join():
    if hvd.rank() == 0:
        hvd.barrier()
        for name, action in (
            ("allgather", lambda: hvd.allgather(ones(2), name="joined")),
            ("broadcast", lambda: hvd.broadcast(ones(2), 0, name="joined")),
            ("alltoall", lambda: hvd.alltoall(ones(hvd.size()), name="joined")),
            ("reducescatter", lambda: hvd.reducescatter(ones(4), name="joined")),
        ):
            expect_error(f"{name} while others have joined", DISAGREE, [f"{name}.joined", "join"], action)
    else:
        hvd.barrier()
    hvd.join()
    alive()


def check_xla_is_refused():
    traced = tf.function(lambda x: hvd.allreduce(x), jit_compile=True)
    expect_error("jit_compile=True", tf.errors.UnimplementedError, ["jit_compile=False"], lambda: traced(ones(2)))
    outer = tf.function(lambda x: tf.function(hvd.allreduce)(x) + 1, jit_compile=True)
    expect_error("jit_compile=True, nested", tf.errors.UnimplementedError, ["jit_compile=False"],
                 lambda: outer(ones(2)))  # fmt: skip
    alive()


def sets_the_setting_for_xla():
    hvd.init()
    traced = tf.function(hvd.allreduce, jit_compile=True)
    if release() >= (2, 19):
        same(traced(ones(2)), [1, 1])
    else:
        expect_error("FARANDOLE_TENSORFLOW_XLA=1", tf.errors.UnimplementedError,
                     ["TensorFlow 2.19 or newer is needed", "jit_compile=False"], lambda: traced(ones(2)))  # fmt: skip


def shuts_down():
    hvd.init()
    traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="late"))
    same(traced(ones(2)), [2, 2])
    if hvd.rank() == 0:
        expect_error("another rank has shut down", ENDED, ["rank 1", "shut down"], lambda: traced(ones(2)))
    hvd.shutdown()
    for run in (lambda: hvd.allreduce(ones(2)), lambda: traced(ones(2))):
        expect_error("after shutdown", ENDED, ["has been shut down"], run)
    # The same graph runs in the next world.
    os.environ["FARANDOLE_RENDEZVOUS"] = os.environ["SECOND_RENDEZVOUS"]
    hvd.init()
    same(traced(ones(2)), [2, 2])


def shuts_down_with_operations_in_flight():
    """Operations that wait for the peer, in a graph and eagerly, end when another thread of their rank shuts down."""
    hvd.init()
    if hvd.rank() == 1:
        hvd.barrier(name="end")
        return
    many = tf.function(lambda x: [hvd.allreduce(x, name=f"waits.{index}") for index in range(100)])
    texts = []
    actions = (lambda: hvd.allreduce(ones(2), name="waits"), lambda: many(ones(2)))
    threads = [
        threading.Thread(
            target=lambda action=action: texts.append(expect_error("shutdown", ENDED, ["has shut"], action))
        )
        for action in actions
    ]
    for thread in threads:
        thread.start()
    time.sleep(1)
    hvd.barrier(name="end")
    hvd.shutdown()
    for thread in threads:
        thread.join()
    assert len(texts) == 2


def dies():
    hvd.init()
    traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="grad"))
    traced(ones(2))
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    text = expect_error("another rank is killed", ENDED, ["rank 1"], lambda: traced(ones(2)))
    assert time.monotonic() - begin < 10
    loss = last_loss()
    assert loss.culprit_rank == 1 and type(loss).__name__ == "PeerLostError" and loss.text in text
    error = loss_of(ENDED(None, None, text))
    assert isinstance(error, hvd.HorovodInternalError) and error.culprit_rank == 1


def fails_inside_a_graph():
    """Rank 1 fails before its collective: rank 0 gets an error that names it, when it leaves."""
    hvd.init()

    @tf.function
    def step(x):
        checked = tf.debugging.check_numerics(x, "the input")
        return hvd.allreduce(checked, op=hvd.Sum, name="step")

    same(step(ones(2)), [2, 2])
    if hvd.rank() == 1:
        expect_error("a rank fails in a graph", INVALID, ["the input"], lambda: step(ones(2) / 0.0))
        sys.exit()  # the worker reports a check that ends so with code 1
    expect_error("another rank fails in a graph", ENDED, ["rank 1"], lambda: step(ones(2)))


def stalls():
    hvd.init()
    if hvd.rank() == 0:
        expect_error("a stall", ENDED, ["lonely", "rank 1"], lambda: hvd.allreduce(ones(2), name="lonely"))
    else:
        time.sleep(4)


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 4])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)


def test_the_setting_for_xla():
    launch(1, sets_the_setting_for_xla, {"FARANDOLE_TENSORFLOW_XLA": "1"})


def test_a_rank_that_shuts_down():
    launch(2, shuts_down, {"SECOND_RENDEZVOUS": f"tcp://127.0.0.1:{free_port()}"})


def test_operations_in_flight_end_with_their_world():
    launch(2, shuts_down_with_operations_in_flight)


def test_a_rank_that_dies():
    launch(2, dies, codes=[0, -signal.SIGKILL])


def test_a_rank_that_fails_inside_a_graph():
    launch(2, fails_inside_a_graph, codes=[0, 1])


def test_a_stall_that_lasts_is_ended():
    launch(2, stalls, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5"})
