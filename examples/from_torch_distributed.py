"""from_torch_distributed: a script for Gloo or NCCL; its only change is the name of the backend.

torchrun --nproc-per-node 2 examples/from_torch_distributed.py --backend gloo
torchrun --nproc-per-node 2 examples/from_torch_distributed.py --backend farandole
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="farandole", choices=("farandole", "gloo"))
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)  # the only change
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    inputs = torch.randn(256, 16)
    data = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for batch, wanted in DataLoader(data, batch_size=16, sampler=sampler):
            loss = nn.functional.mse_loss(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
    hosts = [None] * size
    dist.all_gather_object(hosts, f"rank {rank}, process {os.getpid()}")

    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    theirs = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(theirs, weights)
    assert all(torch.equal(one, weights) for one in theirs), "all ranks hold the same weights"
    if rank == 0:
        print(
            f"from_torch_distributed: {size} ranks, loss {total.item():.9f}, weights "
            f"{weights.double().sum().item():.15f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
