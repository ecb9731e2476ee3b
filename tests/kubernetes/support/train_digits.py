"""Softmax regression on handwritten digits with NumPy and farandole: the program of the simulated pods.

    DIGITS=digits.npy farandole run -np 2 -- python train_digits.py [--steps N] [--step-seconds S] [--checkpoint FILE]

Each row of DIGITS is an image's 64 pixels and its label. Whatever the number of ranks, the global batches are the same.
"""

import argparse
import hashlib
import os
import sys
import time

import farandole
import numpy as np


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def save(path, step, weights):
    """Writes the whole file or nothing, whenever this process is killed."""
    with open(path + ".new", "wb") as file:
        np.savez(file, step=step, weights=weights)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def resume(path, weights):
    """Returns rank 0's (next step, weights) on all ranks."""
    step = 0
    if path and farandole.rank() == 0 and os.path.exists(path):
        with np.load(path) as saved:
            step, weights = int(saved["step"]), saved["weights"]
        print(f"resumed at step {step}", flush=True)
    step = int(farandole.broadcast(np.array([step]), 0, name="step")[0])
    return step, farandole.broadcast(weights, 0, name="weights")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", help="rank 0 saves here each ten steps, and goes on from there")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0)
    options = parser.parse_args()
    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    print(
        f"rank {rank} of {size} local {farandole.local_rank()}/{farandole.local_size()} on {os.uname().nodename}",
        flush=True,
    )
    rows = np.load(os.environ["DIGITS"])
    pixels, labels = np.hstack([rows[:, :64] / 16.0, np.ones((len(rows), 1))]), rows[:, 64].astype(int)
    order = np.random.default_rng(1).permutation(len(rows))
    train, test = order[297:], order[:297]
    weights = np.random.default_rng(rank).normal(0, 0.01, (65, 10))
    first, weights = resume(options.checkpoint, weights)
    batch, loss = 240, 0.0
    for step in range(first, options.steps):
        if options.checkpoint and rank == 0 and step % 10 == 0:
            save(options.checkpoint, step, weights)
        start = step * batch % (len(train) - batch + 1)
        mine = train[start : start + batch][rank::size]
        chances = softmax(pixels[mine] @ weights)
        loss = -np.log(chances[np.arange(len(mine)), labels[mine]] + 1e-12).sum()
        chances[np.arange(len(mine)), labels[mine]] -= 1
        gradient = farandole.allreduce(pixels[mine].T @ chances, name="gradient", op=farandole.SUM)
        loss = float(farandole.allreduce(np.array([loss]), name="loss", op=farandole.SUM)[0]) / batch
        weights -= 0.5 * gradient / batch
        if options.step_seconds:
            if rank == 0:
                print(f"step {step}", flush=True)
            time.sleep(options.step_seconds)
    same = farandole.allgather(
        np.frombuffer(hashlib.sha256(weights.tobytes()).digest(), np.uint8).reshape(1, 32), name="same"
    )
    accuracy = float((np.argmax(pixels[test] @ weights, axis=1) == labels[test]).mean())
    if rank == 0:
        alike = len({row.tobytes() for row in same})
        print(
            f"trained: accuracy {accuracy:.3f} loss {loss:.4f} on {size} ranks, {alike} version of the weights",
            flush=True,
        )
    farandole.shutdown()


if __name__ == "__main__":
    sys.exit(main())
