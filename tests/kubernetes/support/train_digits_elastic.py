"""train_digits as an elastic program: ranks join and leave at commits, and the learned weights are the same.

DIGITS=digits.npy farandole run --nnodes 2:3 ... -- python train_digits_elastic.py [--steps N] [--until FILE]
    [--step-seconds S] [--step-seconds-a-rank S]
"""

import argparse
import os
import sys
import time

import farandole
import numpy as np
from train_digits import softmax


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--until", metavar="FILE", help="after --steps too, until this file has a byte")
    parser.add_argument("--step-seconds", type=float, default=0, help="of each step, at least")
    parser.add_argument("--step-seconds-a-rank", type=float, default=0, help="added for each rank beyond the first")
    options = parser.parse_args()
    rows = np.load(os.environ["DIGITS"])
    pixels, labels = np.hstack([rows[:, :64] / 16.0, np.ones((len(rows), 1))]), rows[:, 64].astype(int)
    order = np.random.default_rng(1).permutation(len(rows))
    train, test = order[297:], order[:297]
    batch = 240
    farandole.on_leave(lambda seconds: print(f"left at step {state.step}", flush=True))
    farandole.init()
    state = farandole.elastic.ObjectState(
        step=0, loss=0.0, weights=np.random.default_rng(0).normal(0, 0.01, (65, 10)), may_end=options.until is None
    )

    @farandole.elastic.run
    def go_on(state):
        rank, size = farandole.rank(), farandole.size()
        print(
            f"enters as rank {rank} of {size} local {farandole.local_rank()}/{farandole.local_size()} at step "
            f"{state.step}",
            flush=True,
        )
        while state.step < options.steps or not state.may_end:
            begin = time.monotonic()
            start = state.step * batch % (len(train) - batch + 1)
            mine = train[start : start + batch][rank::size]
            chances = softmax(pixels[mine] @ state.weights)
            loss = -np.log(chances[np.arange(len(mine)), labels[mine]] + 1e-12).sum()
            chances[np.arange(len(mine)), labels[mine]] -= 1
            gradient = farandole.allreduce(pixels[mine].T @ chances, name="gradient", op=farandole.SUM)
            is_told = bool(options.until) and os.path.getsize(options.until) > 0
            loss, told = farandole.allreduce(np.array([loss, is_told]), name="loss", op=farandole.SUM)
            state.loss, state.may_end = float(loss) / batch, state.may_end or told > 0
            state.weights = state.weights - 0.5 * gradient / batch
            state.step += 1
            if rank == 0:
                print(f"step {state.step} on {size} ranks", flush=True)
            ends = begin + options.step_seconds + options.step_seconds_a_rank * (size - 1)
            time.sleep(max(0, ends - time.monotonic()))
            state.commit()

    go_on(state)
    accuracy = float((np.argmax(pixels[test] @ state.weights, axis=1) == labels[test]).mean())
    if farandole.rank() == 0:
        print(f"trained: accuracy {accuracy:.3f} loss {state.loss:.4f} on {farandole.size()} ranks", flush=True)
    farandole.shutdown()


if __name__ == "__main__":
    sys.exit(main())
