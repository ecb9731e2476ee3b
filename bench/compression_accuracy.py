"""Trains a network with each compression of the gradients, and prints what it reaches.

    farandole run -np 4 -- python bench/compression_accuracy.py [--seeds 5] [--epochs 30]
    farandole run -np 4 -- python bench/compression_accuracy.py --text [--seeds 5] [--steps 400]

Without --text: the accuracy of a small network on those of scikit-learn's digits that were left out. With --text: the
loss, in bits for each character, of a small transformer on text that was left out; the text is Python's own manual,
which Python ships. Rank 0 prints the mean over the seeds, the lowest and the highest, and the mean less float32's.
"""

import argparse
import math
import pydoc_data.topics

import farandole.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F

COMPRESSIONS = {
    "float32": hvd.Compression.none,
    "int8": hvd.Compression.int8,
    "int8, feedback": hvd.Compression.int8.with_feedback(),
    "float8_e4m3": hvd.Compression.float8_e4m3,
    "int4": hvd.Compression.int4,
    "int4, feedback": hvd.Compression.int4.with_feedback(),
}


def optimizer_of(model, kind, compression, **options):
    return hvd.DistributedOptimizer(
        kind(model.parameters(), **options), model.named_parameters(), compression=compression
    )


def accuracy(compression, seed, epochs):
    """The share of the digits that were left out that the trained network names."""
    from sklearn.datasets import load_digits

    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(one) for one in load_digits(return_X_y=True))
    images, order = images.float() / 16, torch.randperm(len(labels))
    images, labels = images[order], labels[order]
    trained = 1500
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optimizer_of(model, torch.optim.SGD, compression, lr=0.1, momentum=0.9)
    for _ in range(epochs):
        shuffled = torch.randperm(trained)  # the same on all ranks
        for batch in shuffled.split(100):
            mine = batch[hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(images[trained:]).argmax(1) == labels[trained:]).float().mean().item()


LENGTH = 64  # characters of a sequence
SEQUENCES = 16  # of all ranks in a step
WIDTH = 64


class Transformer(nn.Module):
    """Two layers that predict the next character; 0.1 million parameters."""

    def __init__(self, characters):
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(WIDTH, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text):
        return self.last(self.layers(self.characters(text) + self.places, mask=self.mask, is_causal=True))


def manual():
    """Python's manual as numbers of characters, and how many characters there are."""
    text = "\n".join(pydoc_data.topics.topics.values())
    characters = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([characters[character] for character in text]), len(characters)


def loss_of(model, text, begins):
    sequences = torch.stack([text[begin : begin + LENGTH + 1] for begin in begins.tolist()])
    return F.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())


def bits(compression, seed, steps):
    """The bits that the trained transformer needs for a character of the last tenth of the manual."""
    text, characters = manual()
    trained, left_out = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    torch.manual_seed(seed)
    model = Transformer(characters)
    optimizer = optimizer_of(model, torch.optim.AdamW, compression, lr=3e-3)
    for _ in range(steps):
        begins = torch.randint(len(trained) - LENGTH, (SEQUENCES,))  # the same on all ranks
        optimizer.zero_grad()
        loss_of(model, trained, begins[hvd.rank() :: hvd.size()]).backward()
        optimizer.step()
    with torch.no_grad():
        return loss_of(model, left_out, torch.arange(0, len(left_out) - LENGTH, LENGTH)).item() / math.log(2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--steps", type=int, default=400)
    arguments = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    plain = None
    for name, compression in COMPRESSIONS.items():
        if arguments.text:
            reached = [bits(compression, seed, arguments.steps) for seed in range(arguments.seeds)]
        else:
            reached = [accuracy(compression, seed, arguments.epochs) for seed in range(arguments.seeds)]
        plain = plain or reached
        mean = sum(reached) / len(reached)
        apart = mean - sum(plain) / len(plain)
        if hvd.rank() == 0:
            ends = f"lowest {min(reached):.4f}  highest {max(reached):.4f}"
            print(f"{name:15} mean {mean:.4f}  {ends}  less float32's {apart:+.4f}", flush=True)


if __name__ == "__main__":
    main()
