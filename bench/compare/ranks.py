"""Runs the ranks of one host as children of one process, and applies the method of measure.h to Python libraries.

Ranks are not bound to cores: Gloo has threads of its own, which would compete for one core.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import traceback

import torch

CORES = len(os.sched_getaffinity(0))


def _child(rank, size, folder, body, options):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no child outlives its parent
    torch.set_num_threads(1)
    try:
        body(rank, size, folder, options)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _numbers(text):
    return [int(part) for part in text.split(",")]


def main(body, add_arguments=None):
    """Runs body(rank, size, folder, options) in every rank; exits with 1 when one failed. `folder` is shared."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--sizes", type=_numbers, default=[4, 1024])
    parser.add_argument("--tensors", type=_numbers)
    if add_arguments:
        add_arguments(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(options.ranks):
            child = os.fork()
            if child == 0:
                _child(rank, options.ranks, folder, body, options)
            children.append(child)
        failed = False
        while children:
            child, state = os.wait()
            children.remove(child)
            if state != 0 and not failed:
                failed = True
                for other in children:
                    os.kill(other, signal.SIGKILL)
    sys.exit(int(failed))


def emit(name, value, samples):
    print(json.dumps({name: value, "samples_us": [round(us, 3) for us in sorted(samples)]}), flush=True)


def report(library, case, samples):
    if library.rank == 0:
        emit("case", case, samples)


def sample(library, seconds, batch, between):
    """As `sample` of measure.h: the slowest rank's time of one call, for each timed batch."""
    batch_us = 100 if library.size <= CORES else 2000

    def time_us(calls):
        begin = time.perf_counter_ns()
        batch(calls)
        took = (time.perf_counter_ns() - begin) / 1e3 / calls
        between()
        return took

    time_us(1)
    library.barrier()
    once = library.from_first_rank(time_us(2))
    calls = int(min(max(batch_us / once, 1), 1000))
    samples = []
    for _ in range(int(min(max(seconds * 1e6 / (once * calls), 2), 200))):
        library.barrier()
        samples.append(time_us(calls))
    return library.max(samples)


def each_call(call, rewrite, count=5000, first=500):
    """Microseconds of each of `count` calls, after `first` that are not timed. rewrite() is not timed either."""
    samples = []
    for number in range(first + count):
        begin = time.perf_counter_ns()
        call()
        took = (time.perf_counter_ns() - begin) / 1e3
        rewrite()
        if number >= first:
            samples.append(took)
    return samples


def last_level_cache():
    try:
        return max(os.sysconf("SC_LEVEL3_CACHE_SIZE"), 32 << 20)
    except ValueError:
        return 32 << 20


class _RotatedTensors:
    """Tensors of `count` elements that rotate through `places` places of `pool`, `stride` elements apart."""

    def __init__(self, library, pool, pattern, count, stride, places):
        self.library, self.pool, self.pattern = library, pool, pattern
        self.count, self.stride, self.places = count, stride, places
        self.turn = self.written = 0

    def _place(self, turn):
        start = turn % self.places * self.stride
        return slice(start, start + self.count)

    def reduce(self, calls):
        for _ in range(calls):
            self.library.allreduce(self.pool[self._place(self.turn)])
            self.turn += 1

    def rewrite(self):
        """Restores the values of the places that were reduced since the last call."""
        for turn in range(max(self.written, self.turn - self.places), self.turn):
            place = self._place(turn)
            self.pool[place] = self.pattern[place]
        self.written = self.turn


def measure_sizes(library, sizes, seconds):
    """Measures tensors that rotate through more memory than the cache holds and are rewritten between batches."""
    pool_bytes = max(*sizes, 8 * last_level_cache() // library.size)
    pattern = (torch.arange(pool_bytes // 4) + library.rank).bitwise_and_(7).float()
    pool = pattern.clone()
    for size in sizes:
        count = size // 4
        stride = (size + 4095) // 4096 * 1024
        places = 2 if size <= 32768 else pool_bytes // 4 // stride
        _check_sum(library, count)
        rotated = _RotatedTensors(library, pool, pattern, count, stride, places)
        samples = sample(library, seconds, rotated.reduce, rotated.rewrite)
        if library.rank == 0:
            emit("bytes", size, samples)


def _check_sum(library, count):
    index = torch.arange(count)
    tensor = (index + library.rank).bitwise_and_(7).float()
    library.allreduce(tensor)
    expected = sum((index + rank).bitwise_and_(7).float() for rank in range(library.size))
    if not torch.equal(tensor, expected):
        raise SystemExit(f"wrong sum of {count} elements")
