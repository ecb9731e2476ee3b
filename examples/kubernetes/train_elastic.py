"""train_elastic: the training of train_numpy as an elastic job. Pods join and leave while the others continue.

    farandole run --nnodes 1:2 ... -- python train_elastic.py --steps 200

The state is committed in memory after each step: a lost pod costs one step. The learned weights do not depend on the
number of ranks.
"""

import argparse
import time

import farandole
import numpy as np
from train_numpy import load, step_of


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", metavar="FILE", help="digits as .npy")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=240, help="of all ranks together")
    parser.add_argument("--report-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--step-seconds", type=float, default=0, help="added to each step, for demonstrations")
    options = parser.parse_args()

    inputs, labels = load(options.data)
    farandole.on_leave(lambda seconds: print(f"train_elastic: leaves after step {state.step}", flush=True))
    farandole.init()
    state = farandole.elastic.ObjectState(step=0, loss=0.0, weights=np.zeros((65, 10)))

    @farandole.elastic.run
    def train(state):
        rank, size = farandole.rank(), farandole.size()
        if rank == 0:
            print(f"train_elastic: {size} ranks, from step {state.step}", flush=True)
        while state.step < options.steps:
            start = state.step * options.batch_size % (len(labels) - options.batch_size + 1)
            mine = np.arange(start, start + options.batch_size)[rank::size]
            state.weights, state.loss = step_of(state.weights, inputs, labels, mine, options.batch_size, options.lr)
            state.step += 1
            if rank == 0 and state.step % options.report_every == 0:
                print(f"step {state.step} loss={state.loss:.6f}", flush=True)
            time.sleep(options.step_seconds)
            state.commit()

    train(state)
    if farandole.rank() == 0:
        right = float((np.argmax(inputs @ state.weights, axis=1) == labels).mean())
        print(f"accuracy={right:.4f}", flush=True)
    farandole.shutdown()


if __name__ == "__main__":
    main()
