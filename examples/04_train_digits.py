"""04_train_digits: data-parallel training with PyTorch, with the calls of Horovod.

    python examples/04_train_digits.py                         # one rank
    farandole run -np 2 python examples/04_train_digits.py     # two ranks share each batch

The data are the 1797 handwritten digits of scikit-learn. Any number of ranks trains on the same global batches, each
rank on its share, so the result is that of one rank up to rounding.
"""

import argparse
import json
import time

import farandole.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

TEST_IMAGES = 297


class ConvNet(nn.Module):
    """8 x 8 pixels to ten classes."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.classes = nn.Linear(32 * 4 * 4, 10)

    def forward(self, images):
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.classes(x.flatten(1))


def load():
    """(training images, labels), (test images, labels); shuffled the same way on every rank."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    images, labels = images[order], labels[order]
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES])


def my_share(batch):
    """This rank's part of a global batch."""
    return batch[hvd.rank() :: hvd.size()]


def train_epoch(model, optimizer, images, labels, batch_size, epoch):
    """One pass over the data; returns the mean loss over all ranks' samples."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(100 + epoch))
    total, batches = 0.0, 0
    for start in range(0, len(order) - batch_size + 1, batch_size):
        mine = my_share(order[start : start + batch_size])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()  # gradients are averaged over ranks while this runs
        optimizer.step()
        total, batches = total + loss.detach(), batches + 1
    return hvd.allreduce(total / batches, name="mean_loss").item()


@torch.no_grad()
def test(model, images, labels):
    """The fraction of test images that all ranks together classified correctly."""
    mine = my_share(torch.arange(len(images)))
    right = (model(images[mine]).argmax(1) == labels[mine]).sum()
    return hvd.allreduce(right, name="right", op=hvd.Sum).item() / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=60, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes loss and accuracy there")
    options = parser.parse_args()

    hvd.init()
    if options.batch_size % hvd.size():
        parser.error(f"--batch-size {options.batch_size} does not divide among {hvd.size()} ranks")
    torch.manual_seed(hvd.rank())  # ranks may start with different weights: the broadcast below makes them equal
    (images, labels), (test_images, test_labels) = load()
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    begin = time.monotonic()
    for epoch in range(1, options.epochs + 1):
        loss = train_epoch(model, optimizer, images, labels, options.batch_size, epoch)
        schedule.step()
        accuracy = test(model, test_images, test_labels)
        if hvd.rank() == 0:
            seconds = time.monotonic() - begin
            print(f"epoch {epoch:2}/{options.epochs}  loss {loss:.4f}  accuracy {accuracy:.3f}  {seconds:5.1f} s",
                  flush=True)  # fmt: skip
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.4f} loss {loss:.6f} on {hvd.size()} rank{'s' if hvd.size() > 1 else ''}")
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"ranks": hvd.size(), "loss": loss, "accuracy": accuracy}, file)


if __name__ == "__main__":
    main()
