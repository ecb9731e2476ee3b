"""train_numpy: training with NumPy alone, as a job on Kubernetes: it saves, resumes, and handles SIGTERM.

    farandole run -np 2 -- python train_numpy.py --checkpoint /tmp/state.npz
    farandole run -np 2 -- python train_numpy.py --checkpoint s3://bucket/run-7/state.npz     # pip install
    "farandole[s3]"

Softmax regression on handwritten digits (`--data`: rows of 64 pixels and a label, .npy), or without them on random
points. Every rank computes the same global batches, so the result does not depend on the number of ranks. Rank 0 alone
prints the metric, as `loss=0.25`, which Katib reads.
"""

import argparse
import io
import signal
import sys
import zipfile

import farandole
import numpy as np
from farandole import checkpoint

PREEMPTED = 143  # never 0: Kubernetes would count an index that saved its state as finished


def load(path):
    """(inputs with a column of ones, labels), the same on every rank."""
    if path:
        rows = np.load(path)
    else:
        random = np.random.default_rng(0)
        labels = random.integers(0, 10, 1800)
        rows = np.hstack(
            [8 + 4 * random.normal(0, 1, (10, 64))[labels] + random.normal(0, 4, (1800, 64)), labels[:, None]]
        )
    return np.hstack([rows[:, :64] / 16.0, np.ones((len(rows), 1))]), rows[:, 64].astype(int)


def save(where, **state):
    """All or nothing: a reader, or a start after SIGKILL, finds the old state or the new one."""
    memory = io.BytesIO()
    np.savez(memory, **state)
    checkpoint.write(where, memory.getbuffer())


def resume(where):
    """(step, weights), or nothing to resume from."""
    data = checkpoint.read(where) if where else None
    if data is None:
        return 0, None
    try:
        with np.load(io.BytesIO(data)) as state:
            return int(state["step"]), state["weights"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        sys.exit(f"train_numpy: {where} is no checkpoint of this program ({error}); move it away")


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def step_of(weights, inputs, labels, mine, batch, lr):
    """The weights after one step, and the mean loss over the global batch."""
    chances = softmax(inputs[mine] @ weights)
    loss = -np.log(chances[np.arange(len(mine)), labels[mine]] + 1e-12).sum()
    chances[np.arange(len(mine)), labels[mine]] -= 1
    gradient = farandole.allreduce(inputs[mine].T @ chances, name="gradient", op=farandole.SUM)
    total = farandole.allreduce(np.array([loss]), name="loss", op=farandole.SUM)
    return weights - lr * gradient / batch, float(total[0]) / batch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="FILE", help="digits as .npy")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=240, help="of all ranks together")
    parser.add_argument("--checkpoint", metavar="PLACE", help="a file, or the URI of an object")
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    options = parser.parse_args()

    told_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.append(True))
    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    inputs, labels = load(options.data)
    first, weights = resume(options.checkpoint) if rank == 0 else (0, None)
    # Rank 0 decides at which step all begin: for a moment another node may see an older version of a shared file.
    first = int(farandole.broadcast(np.array([first]), 0, name="first")[0])
    weights = farandole.broadcast(np.zeros((65, 10)) if weights is None else weights, 0, name="weights")
    if rank == 0:
        print(f"train_numpy: {size} ranks, from step {first}", flush=True)

    for step in range(first, options.steps):
        start = step * options.batch_size % (len(labels) - options.batch_size + 1)
        mine = np.arange(start, start + options.batch_size)[rank::size]
        weights, loss = step_of(weights, inputs, labels, mine, options.batch_size, options.lr)
        # One signal to any rank ends all of them at the same step.
        ending = farandole.allreduce(np.array([len(told_to_end)]), name="ending", op=farandole.SUM)[0] > 0
        last = step + 1 == options.steps
        if rank == 0 and options.checkpoint and (ending or last or (step + 1) % options.save_every == 0):
            save(options.checkpoint, step=step + 1, weights=weights)
        if ending and not last:
            if rank == 0:
                print(f"train_numpy: requested to end; step {step + 1} is saved", flush=True)
            farandole.shutdown()
            sys.exit(PREEMPTED)
    if rank == 0 and first < options.steps:
        right = float((np.argmax(inputs @ weights, axis=1) == labels).mean())
        print(f"loss={loss:.6f}\naccuracy={right:.4f}", flush=True)
    farandole.shutdown()


if __name__ == "__main__":
    main()
