"""What a call costs in TensorFlow: farandole's op, and the same allreduce inside tf.numpy_function and tf.py_function.

    farandole run -np 2 python bench/compare/tensorflow_calls.py

Each way runs in the same process, one after another, with 64 B and 4 MiB: a chain of calls in a tf.function, and single
calls in eager mode. Times are the smallest of several repeats, in microseconds a call; `tf.identity` is the cost of an
op that does nothing, and `core` the allreduce of NumPy arrays without TensorFlow.
"""

import json
import sys
import time

import farandole
import farandole.tensorflow as hvd
import numpy as np
import tensorflow as tf


def own_op(x, name):
    return hvd.allreduce(x, op=hvd.Sum, name=name)


def core_allreduce(name):
    return lambda array: farandole.allreduce(array, "sum", name=name)


def numpy_function(x, name):
    out = tf.numpy_function(core_allreduce(name), [x], x.dtype)
    out.set_shape(x.shape)
    return out


def py_function(x, name):
    out = tf.py_function(lambda value: core_allreduce(name)(value.numpy()), [x], x.dtype)
    out.set_shape(x.shape)
    return out


WAYS = {
    "farandole": own_op,
    "numpy_function": numpy_function,
    "py_function": py_function,
    "tf.identity": lambda x, name: tf.identity(x),
}


def chain(way, length):
    @tf.function
    def run(x):
        for index in range(length):
            x = way(x, f"chain.{index}") * 0.5  # one more op, so that values stay in range
        return x

    return run


def best(action, calls, repeats):
    action()
    action()
    times = []
    for _ in range(repeats):
        farandole.barrier()
        begin = time.perf_counter()
        action()
        times.append((time.perf_counter() - begin) / calls)
    return min(times) * 1e6


def measure(count):
    x = tf.ones([count])
    length, repeats = (100, 20) if count < 1000 else (10, 10)
    rows = []
    for name, way in WAYS.items():
        run = chain(way, length)
        in_graph = best(lambda run=run: run(x), length, repeats)

        def eager(way=way):
            for _ in range(length):
                way(x, "eager")

        rows.append((name, in_graph, best(eager, length, repeats)))
    array = np.ones(count, np.float32)

    def core():
        for _ in range(length):
            core_allreduce("core")(array)

    rows.append(("core", None, best(core, length, repeats)))
    return rows


def main():
    hvd.init()
    report = {}
    for count, title in ((16, "64 B"), (1 << 20, "4 MiB")):
        report[title] = measure(count)
    if hvd.rank() == 0:
        print(f"TensorFlow {tf.__version__}, {hvd.size()} ranks; us a call")
        for title, rows in report.items():
            print(f"| {title} | in tf.function | eager |\n|---|---|---|")
            for name, graph, eager in rows:
                print(f"| {name} | {'-' if graph is None else f'{graph:.1f}'} | {eager:.1f} |")
        if "--json" in sys.argv:
            print(json.dumps(report))


if __name__ == "__main__":
    main()
