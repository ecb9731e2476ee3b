"""The five calls of Horovod's API around a PyTorch program, on CPUs or with one GPU for each rank.

    farandole run -np 2 -- python train_torch.py
    farandole run -np 2 -- python train_torch.py --checkpoint s3://bucket/run-7     # pip install "farandole[s3]"

What the tutorials for Kubernetes that this replaces do wrong: they scale neither the learning rate nor the data by the
number of ranks, and each rank prints and saves.
"""

import argparse
import functools
import io

import torch
import torch.nn.functional as F

import farandole.torch as hvd
from farandole import checkpoint


def save(thing, file):
    torch.save(thing.state_dict(), file)


def resume(where, model, optimizer):
    """Returns the next epoch. Every rank reads rank 0's last checkpoint."""
    found = checkpoint.load(where) if where else None
    if not found:
        return 0
    model.load_state_dict(torch.load(found.open("model.pt"), weights_only=True))
    optimizer.load_state_dict(torch.load(found.open("optimizer.pt"), weights_only=True))
    return found.step


def points(count):
    """Random points of ten classes, the same on every rank."""
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(10, 64, generator=random)
    labels = torch.randint(0, 10, (count,), generator=random)
    return centers[labels] + torch.randn(count, 64, generator=random), labels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02, help="of one rank; scaled by their number")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument(
        "--checkpoint", metavar="PLACE", help="resumed from, and saved to after each epoch: a folder or a URI"
    )
    parser.add_argument(
        "--model-dir", metavar="PLACE", help="rank 0 writes model.pt there: into a folder, or under a URI"
    )
    options = parser.parse_args()

    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    inputs, labels = points(2048)
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    first = resume(options.checkpoint, model, optimizer)

    for epoch in range(first, options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))[hvd.rank() :: hvd.size()]
        for batch in order[: len(labels) // hvd.size()].split(options.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[batch].to(device)), labels[batch].to(device))
            loss.backward()
            optimizer.step()
        mean = hvd.allreduce(loss.detach().cpu(), name="loss").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} loss={mean:.6f}", flush=True)
            if options.model_dir:
                memory = io.BytesIO()
                save(model, memory)
                checkpoint.write(f"{options.model_dir}/model.pt", memory.getbuffer())
        if options.checkpoint:
            parts = {
                name: functools.partial(save, thing)
                for name, thing in (("model.pt", model), ("optimizer.pt", optimizer))
            }
            checkpoint.save(options.checkpoint, epoch + 1, parts)


if __name__ == "__main__":
    main()
