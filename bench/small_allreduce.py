"""Measures blocking allreduces of 4 bytes from Python: NumPy, farandole.torch in place and not, and the ordered level.

farandole run -np 2 python bench/small_allreduce.py [--json]
"""

import json
import sys
import time

import farandole
import farandole.torch as hvd
import numpy
import torch


def times_of(body, repetitions=3000):
    for _ in range(200):
        body()
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter_ns()
        body()
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    return times[len(times) // 2] / 1000, times[0] / 1000


def main():
    hvd.init()
    array = numpy.ones(1, numpy.float32)
    tensor = torch.ones(1)
    comm = farandole.Communicator()
    works = {
        "nothing but the clock": lambda: None,
        "ordered, NumPy in place": lambda: comm.allreduce(array, array),
        "named, NumPy in place": lambda: farandole.allreduce(array, farandole.Op.AVERAGE, name="array", out=array),
        "farandole.torch, allreduce_": lambda: hvd.allreduce_(tensor, name="tensor"),
        "farandole.torch, allreduce": lambda: hvd.allreduce(tensor, name="other"),
        "farandole.torch, async and synchronize": lambda: hvd.synchronize(hvd.allreduce_async_(tensor, name="async")),
    }
    for what, body in works.items():
        median, least = times_of(body)
        if hvd.rank() != 0:
            continue
        if "--json" in sys.argv:
            print(json.dumps({"what": what, "ranks": hvd.size(), "time_us_median": median, "time_us_min": least}))
        else:
            print(f"{what:<44} {median:10.1f} us median {least:10.1f} us min", flush=True)
    hvd.shutdown()


main()
