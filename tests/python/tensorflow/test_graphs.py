"""What TensorFlow does with graphs: order, optimization, threads, forks and saved models."""

import ctypes
import os
import subprocess
import sys
import tempfile
import threading

import farandole
import farandole.tensorflow as hvd
import numpy as np
import pytest
import tensorflow as tf
from farandole.tensorflow import native
from launch import checks_of, launch, require
from limits import allowed
from test_tensorflow import same


def operations():
    """The named operations that this rank has completed."""
    return farandole.metrics()["named_operations"]


def counted(action):
    before = operations()
    result = action()
    return operations() - before, result


def check_ops_have_no_order():
    """Ranks trace independent operations in opposite orders, and each waits for its peer's."""
    hvd.init()
    for count in (2, 8, 64):
        order = range(count) if hvd.rank() == 0 else range(count - 1, -1, -1)

        @tf.function
        def together(x, order=order):
            results = {index: hvd.allreduce(x + index, op=hvd.Sum, name=f"independent.{index}") for index in order}
            return [results[index] for index in sorted(results)]

        for _ in range(3):
            for index, result in enumerate(together(tf.fill([2], hvd.rank()))):
                same(result, np.full(2, 2 * index + 1))


def check_unnamed_ops_are_matched_by_their_tensors():
    def first_and_second(a, b):
        return hvd.allreduce(a, op=hvd.Sum), hvd.allreduce(b, op=hvd.Sum)

    def second_and_first(a, b):
        second = hvd.allreduce(b, op=hvd.Sum)
        return hvd.allreduce(a, op=hvd.Sum), second

    functions = [first_and_second, second_and_first]
    functions[hvd.rank()].__name__ = "step"
    a, b = tf.function(functions[hvd.rank()])(tf.fill([2], 1), tf.fill([2], 10))
    same(a, [2, 2])
    same(b, [20, 20])


def check_constants_are_not_folded():
    @tf.function
    def of_constants(x):
        one = hvd.allreduce(tf.constant([1.0, 2.0]) * 3.0, op=hvd.Sum)
        two = hvd.allreduce(tf.shape(x), op=hvd.Sum)  # known when the graph is optimized
        return one, two

    for _ in range(3):
        number, (one, two) = counted(lambda: of_constants(tf.ones([4])))
        assert number == 2, "each run is one run of each operation"
        same(one, [6, 12])
        same(two, [8])


def check_equal_calls_are_not_merged():
    @tf.function
    def twice(x):
        return hvd.allreduce(x, op=hvd.Sum) + hvd.allreduce(x, op=hvd.Sum), hvd.rank_op() + hvd.rank_op()

    number, (result, _) = counted(lambda: twice(tf.ones([2])))
    assert number == 2
    same(result, [4, 4])


def check_unused_calls_are_removed():
    @tf.function
    def unused(x):
        hvd.allreduce(x, name="unused")
        return hvd.allreduce(x, op=hvd.Sum, name="used")

    number, result = counted(lambda: unused(tf.ones([2])))
    assert number == 1
    same(result, [2, 2])

    @tf.function
    def barriers():
        hvd.barrier()
        hvd.barrier()

    assert counted(barriers)[0] == 2  # they are kept, because they are stateful


def check_a_call_in_a_loop_runs_each_time():
    @tf.function
    def loop(x):
        total = tf.zeros_like(x)
        for _ in tf.range(10):
            total += hvd.allreduce(x, op=hvd.Sum)  # the same in each round
        return total

    number, result = counted(lambda: loop(tf.ones([2])))
    assert number == 10
    same(result, [20, 20])

    @tf.function
    def overlapping_rounds(x):
        # Ranks are slow in different rounds: each round must meet the same round of the peer.
        results = tf.TensorArray(tf.int32, 200)
        for i in tf.range(200):
            work = tf.reduce_sum(tf.random.uniform([200 * ((i + hvd.rank()) % 7)]))
            with tf.control_dependencies([work]):
                results = results.write(i, hvd.allreduce(x + i, op=hvd.Sum))
        return results.stack()

    same(overlapping_rounds(tf.constant(hvd.rank())), 2 * np.arange(200) + 1)


def check_many_ops_in_flight():
    @tf.function
    def many(x):
        return [hvd.allreduce(x + index, op=hvd.Sum) for index in range(500)]

    for index, result in enumerate(many(tf.fill([3], 1))):
        same(result, np.full(3, 2 * (index + 1)))


def check_threads():
    """Four threads run eager operations at a time, and functions that they share with no other thread."""
    failures = []

    def work(number):
        try:
            traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name=f"traced.{number}"))
            for step in range(50):
                same(hvd.allreduce(tf.fill([4], step), op=hvd.Sum, name=f"eager.{number}"), np.full(4, 2 * step))
                same(traced(tf.fill([4], step)), np.full(4, 2 * step))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def check_forked_children_cannot_use_the_world():
    pid = os.fork()
    if pid == 0:
        try:
            hvd.rank()
        except ValueError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    same(hvd.allreduce(tf.ones([1]), op=hvd.Sum), [2])


def check_saved_models():
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def train(self, x):
            return hvd.allreduce(x, op=hvd.Sum)

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def serve(self, x):
            return x * 2

    with tempfile.TemporaryDirectory() as folder:
        module = Module()
        tf.saved_model.save(module, folder)
        same(tf.saved_model.load(folder).train(tf.ones([2])), [2, 2])
        # A process without farandole loads what serves, if only that is in the signatures and the object.
        served = os.path.join(folder, "served")
        plain = tf.Module()
        plain.serve = tf.function(lambda x: x * 2, input_signature=[tf.TensorSpec([None])])
        tf.saved_model.save(plain, served)
        program = (
            f"import tensorflow as tf; print(tf.saved_model.load({served!r}).serve(tf.ones([2])).numpy().tolist())"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=allowed(120))
        assert done.stdout.strip() == "[2.0, 2.0]", done.stderr


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_on_ranks(check):
    require(sys.modules[__name__], 2, check)


def one_thread():
    """The operations of a graph complete although TensorFlow has one thread for all of them."""
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    order = range(16) if hvd.rank() == 0 else range(15, -1, -1)
    traced = tf.function(lambda x: [hvd.allreduce(x, op=hvd.Sum, name=f"{index}") for index in order])
    for result in traced(tf.ones([1000])):
        same(result, np.full(1000, 2))


def test_one_thread_suffices():
    launch(2, one_thread, fresh=True)


def run_python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=allowed(120))


def test_the_library_loaded_before_tensorflow_is_reported():
    program = f"""
import ctypes
import farandole._native
ctypes.CDLL({native.PATH!r})
import farandole.tensorflow
"""
    done = run_python(program)
    assert done.returncode == 1
    assert "ImportError" in done.stderr.splitlines()[-1] and "loaded before TensorFlow" in done.stderr.splitlines()[-1]


def test_farandole_alone_loads_no_framework():
    names = "[name for name in ('tensorflow', 'keras', 'torch', 'jax') if name in sys.modules]"
    assert run_python(f"import sys, farandole; print({names})").stdout.strip() == "[]"
    with_ours = run_python(f"import sys, farandole.tensorflow, horovod.tensorflow; print(*{names})").stdout.split()
    # Some releases import Keras themselves, which imports JAX where it is installed.
    without = run_python(f"import sys, tensorflow; tensorflow.keras.Model; print(*{names})").stdout.split()
    assert "tensorflow" in with_ours and set(with_ours) <= set(without)


def test_the_library_needs_nothing_of_tensorflow():
    """It names TensorFlow's library only at run time, so that one file serves all releases."""
    needed = subprocess.run(["readelf", "-d", native.PATH], capture_output=True, text=True).stdout
    assert "libfarandole.so" in needed and "tensorflow" not in needed.replace("libfarandole_tensorflow", "")
    assert ctypes.CDLL(native.PATH)
