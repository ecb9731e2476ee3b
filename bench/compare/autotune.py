"""Shows what tuning while a job runs does to the time of a step, from a bad start and from the usual one.

python bench/compare/autotune.py [--ranks 2] [--steps 3000] [--transport tcp] [--fusion 4K] [--picture autotune.svg]

Each job sums the gradients of a small network in every step: 161 tensors, 1 to 16 KiB, as named operations. It
prints the median time of a step over its course, with tuning, without it, and with tuning where nothing is to be
gained; what the search cost; and the line that the tuner logs. --picture needs Matplotlib.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

POINTS = 24


def work(steps, path):
    """One rank: runs the steps; rank 0 writes their times in microseconds."""
    import time

    import farandole
    import numpy

    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    tensors = [numpy.empty(256 << i % 5, numpy.float32) for i in range(161)]
    times = []
    for step in range(steps):
        for i, tensor in enumerate(tensors):
            tensor[0] = tensor[-1] = step % 8 + rank + i % 5
        begin = time.perf_counter_ns()
        handles = [
            farandole.allreduce_async(tensor, "sum", name=f"gradient {i}", out=tensor)
            for i, tensor in enumerate(tensors)
        ]
        for i, handle in enumerate(handles):
            summed = handle.wait()
            assert summed[0] == summed[-1] == sum(step % 8 + one + i % 5 for one in range(size))
        times.append((time.perf_counter_ns() - begin) / 1e3)
    if rank == 0:
        with open(path, "w") as file:
            json.dump(times, file)


def run(arguments, **variables):
    """The times of the steps of a job, and what the tuner logged."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "times.json")
        environment = dict(os.environ, FARANDOLE_TRANSPORT=arguments.transport, FARANDOLE_TUNING="off", **variables)
        command = [
            arguments.farandole,
            "run",
            "--standalone",
            "-np",
            str(arguments.ranks),
            "--",
            sys.executable,
            __file__,
        ]
        command += ["--work", path, "--steps", str(arguments.steps)]
        job = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        if job.returncode != 0:
            sys.exit(job.stderr)
        told = [line for line in job.stderr.splitlines() if "autotune:" in line]
        with open(path) as file:
            return json.load(file), told


def median(values):
    return sorted(values)[len(values) // 2]


def course(times):
    """The median of each of POINTS parts."""
    length = max(len(times) // POINTS, 1)
    return [median(times[i : i + length]) for i in range(0, length * POINTS, length) if times[i : i + length]]


def draw(jobs, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for (name, times), color in zip(jobs.items(), ("#d1495b", "#30638e", "#00798c", "#edae49")):
        window = 5
        smooth = [median(times[max(0, i - window) : i + window + 1]) / 1e3 for i in range(0, len(times), 3)]
        axes.plot(range(0, len(times), 3), smooth, color=color, linewidth=1.2, label=name)
    axes.set(xlabel="step", ylabel="time of a step (median of 11), ms", yscale="log")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--fusion", default="4K", help="the bad start")
    parser.add_argument("--farandole", default="build/bin/farandole", help="the program; build/bin/farandole")
    parser.add_argument("--picture", help="a file for Matplotlib")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments.steps, arguments.work)

    jobs = {}
    for name, variables in (
        (f"from {arguments.fusion}, tuned", {"FARANDOLE_FUSION_BYTES": arguments.fusion, "FARANDOLE_AUTOTUNE": "1"}),
        (f"from {arguments.fusion}, not tuned", {"FARANDOLE_FUSION_BYTES": arguments.fusion}),
        ("from the usual cut, tuned", {"FARANDOLE_AUTOTUNE": "1"}),
        ("from the usual cut, not tuned", {}),
    ):
        jobs[name], told = run(arguments, **variables)
        print(
            f"{name}: {sum(jobs[name]) / 1e6:.2f} s for {arguments.steps} steps; median of a step over the job, in ms"
        )
        print("  " + " ".join(f"{us / 1e3:.2f}" for us in course(jobs[name])))
        for line in told:
            print("  " + line)
    if arguments.picture:
        draw(jobs, arguments.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
