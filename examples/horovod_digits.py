"""horovod_digits: a training script for Horovod; it runs here unchanged.

    pip install . bindings/horovod
    farandole run -np 2 python examples/horovod_digits.py      # or torchrun --nproc-per-node 2, or mpirun -np 2 python

The data are the 1797 handwritten digits of scikit-learn.
"""

import argparse

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="Digits with PyTorch and Horovod")
parser.add_argument("--batch-size", type=int, default=30, help="of each rank")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--workers", type=int, default=0, help="processes that load data, for each rank")
parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(x.flatten(1))
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def load():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    train, test = order[300:], order[:300]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train(epoch, model, optimizer, loader, sampler):
    model.train()
    # another order in each epoch, the same on all ranks
    sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    return loss.item()


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


@torch.no_grad()
def test(model, loader, sampler):
    model.eval()
    loss, accuracy = 0.0, 0.0
    for data, target in loader:
        output = model(data)
        loss += F.nll_loss(output, target, reduction="sum").item()
        accuracy += output.argmax(1).eq(target).sum().item()
    # len(sampler) is the number of this rank's test images
    loss = metric_average(loss / len(sampler), "avg_loss")
    return loss, metric_average(accuracy / len(sampler), "avg_accuracy")


def main():
    args = parser.parse_args()
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # ranks share the cores

    train_dataset, test_dataset = load()
    # each rank gets its share of the data
    train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_dataset, args.batch_size, sampler=train_sampler, num_workers=args.workers)
    test_sampler = DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    test_loader = DataLoader(test_dataset, 100, sampler=test_sampler)

    model = Net()
    # The global batch grows with the ranks, and so does the learning rate; Adasum needs no scaling.
    lr_scaler = hvd.size() if not args.use_adasum else 1
    optimizer = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
    # all ranks begin with the weights of rank 0
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    # averages gradients during backward
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    for epoch in range(1, args.epochs + 1):
        train(epoch, model, optimizer, train_loader, train_sampler)
        loss, accuracy = test(model, test_loader, test_sampler)
        if hvd.rank() == 0:
            print(f"epoch {epoch}: test loss {loss:.4f}, accuracy {100 * accuracy:.1f} %", flush=True)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert all(torch.equal(weights, other) for other in hvd.allgather_object(weights)), "ranks have different weights"
    if hvd.rank() == 0:
        print(f"final accuracy {accuracy:.4f} on {hvd.size()} ranks")


if __name__ == "__main__":
    main()
