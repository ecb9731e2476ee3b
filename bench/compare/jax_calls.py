"""What a call costs in JAX: farandole's call in a compiled function, and the same allreduce inside JAX's callbacks.

    farandole run -np 2 python bench/compare/jax_calls.py

Each way runs in the same process, one after another, with 64 B and 4 MiB: a chain of calls in a compiled function, and
single calls of a compiled function with one call. Times are the smallest of several repeats, in microseconds a call.
`x + 1` is a compiled function without a collective, `direct` the call outside compiled functions, and `core` the
allreduce of NumPy arrays without JAX.
"""

import json
import sys
import time

import farandole
import farandole.jax as hvd
import jax
import numpy as np
from jax.experimental import io_callback


def own_call(x, name):
    return hvd.allreduce(x, name, hvd.Sum)


def with_token(x, name):
    return hvd.allreduce(x, name, hvd.Sum, token=hvd.make_token())[0]


def core_allreduce(name):
    return lambda array: farandole.allreduce(np.asarray(array), "sum", name=name)


def pure_callback(x, name):
    return jax.pure_callback(core_allreduce(name), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def ordered_io_callback(x, name):
    return io_callback(core_allreduce(name), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True)


WAYS = {
    "farandole": own_call,
    "with a token": with_token,
    "pure_callback": pure_callback,
    "io_callback": ordered_io_callback,
    "x + 1": lambda x, name: x + 1,
}


def best(action, calls, repeats):
    jax.block_until_ready(action())
    jax.block_until_ready(action())
    times = []
    for _ in range(repeats):
        farandole.barrier()
        begin = time.perf_counter()
        jax.block_until_ready(action())
        times.append((time.perf_counter() - begin) / calls)
    return min(times) * 1e6


def repeated(action, count):
    def run():
        for _ in range(count):
            result = action()
        return result

    return run


def times_of(way, name, x, length, repeats):
    """The times of a call in a chain of `length` calls, and of one in a compiled function of its own."""

    @jax.jit
    def chain(x):
        for index in range(length):
            x = way(x, f"{name}.{index}") * 0.5  # one more operation, so that values stay in range
        return x

    single = jax.jit(lambda x: way(x, f"{name}.single"))
    in_chain = best(lambda: chain(x), length, repeats)
    return in_chain, best(repeated(lambda: jax.block_until_ready(single(x)), 20), 20, repeats)


def measure(count):
    x = jax.numpy.ones(count, "float32")
    length, repeats = (100, 20) if count < 1000 else (10, 10)
    rows = [(name, *times_of(way, name, x, length, repeats)) for name, way in WAYS.items()]
    direct = best(repeated(lambda: hvd.allreduce(x, "direct", hvd.Sum), 20), 20, repeats)
    array = np.asarray(x)
    core = best(repeated(lambda: farandole.allreduce(array, "sum", name="core"), 20), 20, repeats)
    return [*rows, ("direct", None, direct), ("core", None, core)]


def main():
    hvd.init()
    results = {}
    for label, count in (("64 B", 16), ("4 MiB", 1 << 20)):
        results[label] = measure(count)
    if hvd.rank() == 0:
        print(f"JAX {jax.__version__}, {hvd.size()} ranks, us for each call")
        for label, rows in results.items():
            print(f"{label:16}{'in a chain':>12}{'single':>12}")
            for name, chained, single in rows:
                print(f"  {name:14}{'' if chained is None else f'{chained:12.1f}':>12}{single:12.1f}")
        if len(sys.argv) > 1:
            with open(sys.argv[1], "w") as file:
                json.dump(results, file)


if __name__ == "__main__":
    main()
