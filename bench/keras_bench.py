"""A Keras training step of ResNet-50 on several ranks, with and without the reduction of its gradients.

    python bench/keras_bench.py --ranks 2 [--backends tensorflow torch jax] [--quick] [--json FILE]

Each backend runs in ranks of its own. Images have 32 x 32 pixels and batches are small, so that the reduction (161
gradients, 94 MB) is a large part of the step: the worst case. Epochs of the three optimizers alternate: the plain one
(no communication: the ranks only share the cores), the DistributedOptimizer, whose gradients travel as one unit and in
fused buckets, and the same with each gradient as a unit of its own. A number is the slowest rank's time of an epoch,
divided by its steps: the median and the minimum over rounds. Compiling is not timed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BACKENDS = ("tensorflow", "torch", "jax")
WAYS = ("plain", "fused", "single")


def measured(rounds, steps, batch, image):
    """{way: seconds of a step in each round} of this rank's backend."""
    import farandole.keras as hvd
    import keras
    import numpy as np

    hvd.init()
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(hvd.rank())
    inputs = random.normal(size=(steps * batch, image, image, 3)).astype("float32")
    labels = random.integers(0, 10, steps * batch)

    def model(optimizer):
        made = keras.applications.ResNet50(weights=None, input_shape=(image, image, 3), classes=10)
        made.compile(optimizer, "sparse_categorical_crossentropy", jit_compile="auto")
        return made

    def seconds(made):
        hvd.allreduce(0.0, name="bench.start")
        begin = time.perf_counter()
        made.fit(inputs, labels, batch, 1, 0, shuffle=False)
        return float(hvd.allreduce((time.perf_counter() - begin) / steps, name="bench.time", op=hvd.Max))

    models = {
        "plain": model(keras.optimizers.SGD(0.01)),
        "fused": model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))),
        "single": model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01), name="single", groups=10**6)),
    }
    times = {way: [] for way in WAYS}
    for turn in range(rounds + 1):
        for way, made in models.items():
            took = seconds(made)
            if turn:
                times[way].append(took)
    gradients = models["fused"].trainable_variables
    facts = {"gradients": len(gradients), "bytes": sum(4 * int(np.prod(one.shape)) for one in gradients)}
    if hvd.rank() == 0:
        print("RESULT " + json.dumps({"times": times, **facts}), flush=True)
    hvd.shutdown()


def run_ranks(backend, ranks, options):
    """The result of one backend: this file again, as the program of each rank."""
    from farandole import launcher

    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.setdefault("FARANDOLE_START_TIMEOUT_S", "200")
    command = [launcher.program(), "run", "-np", str(ranks), "--", sys.executable, os.path.abspath(__file__), "--rank",
               *map(str, options)]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if "RESULT " in line]
    if done.returncode != 0 or len(found) != 1:
        raise SystemExit(f"{backend}: code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(found[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--batch", type=int, default=4, help="images of each rank")
    parser.add_argument("--image", type=int, default=32, help="pixels of a side")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 2 steps")
    parser.add_argument("--json", help="a file for the results")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rounds, steps = (2, 2) if arguments.quick else (arguments.rounds, arguments.steps)
    if arguments.rank:
        measured(rounds, steps, arguments.batch, arguments.image)
        return
    options = ["--rounds", rounds, "--steps", steps, "--batch", arguments.batch, "--image", arguments.image]
    results = {}
    print(f"ms per step of {arguments.batch} images on {arguments.ranks} ranks: median (minimum) of {rounds} rounds")
    print(f"{'backend':12}" + "".join(f"{way:>20}" for way in WAYS))
    for backend in arguments.backends:
        results[backend] = run_ranks(backend, arguments.ranks, options)
        columns = [results[backend]["times"][way] for way in WAYS]
        cells = [f"{1e3 * statistics.median(one):.0f} ({1e3 * min(one):.0f})" for one in columns]
        print(f"{backend:12}" + "".join(f"{cell:>20}" for cell in cells), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
