"""Trains a small network on scikit-learn's digits with each compression of the gradients, and prints its accuracy.

    farandole run -np 4 -- python bench/compression_accuracy.py [--seeds 5] [--epochs 30]

Rank 0 prints, for each compression, the accuracy on the digits that were left out: the mean over the seeds, and the
lowest and the highest.
"""

import argparse

import farandole.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

COMPRESSIONS = {
    "float32": hvd.Compression.none,
    "int8": hvd.Compression.int8,
    "int8, feedback": hvd.Compression.int8.with_feedback(),
    "float8_e4m3": hvd.Compression.float8_e4m3,
    "int4": hvd.Compression.int4,
    "int4, feedback": hvd.Compression.int4.with_feedback(),
}


def accuracy(compression, seed, epochs):
    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(one) for one in load_digits(return_X_y=True))
    images, order = images.float() / 16, torch.randperm(len(labels))
    images, labels = images[order], labels[order]
    trained = 1500
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), compression=compression
    )
    for _ in range(epochs):
        shuffled = torch.randperm(trained)  # the same on all ranks
        for batch in shuffled.split(100):
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(images[trained:]).argmax(1) == labels[trained:]).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    for name, compression in COMPRESSIONS.items():
        reached = [accuracy(compression, seed, arguments.epochs) for seed in range(arguments.seeds)]
        if hvd.rank() == 0:
            mean = sum(reached) / len(reached)
            print(f"{name:15} mean {mean:.4f}  lowest {min(reached):.4f}  highest {max(reached):.4f}", flush=True)


if __name__ == "__main__":
    main()
