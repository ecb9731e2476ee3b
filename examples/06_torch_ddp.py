"""DistributedDataParallel over backend="farandole", and the same over Gloo: on two ranks the weights are equal bit for
bit.

torchrun --nproc-per-node 2 examples/06_torch_ddp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def train(group):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs = torch.randn(16, 32, generator=data)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), [parameter.detach().clone() for parameter in model.parameters()]


def main():
    dist.init_process_group("farandole")
    loss, ours = train(dist.group.WORLD)
    _, theirs = train(dist.new_group(backend="gloo"))
    difference = max((one - other).abs().max().item() for one, other in zip(ours, theirs))
    # With more than two ranks the order of additions may differ, so that each step rounds differently.
    assert difference == 0 if dist.get_world_size() <= 2 else difference < 1e-3, difference
    if dist.get_rank() == 0:
        print(f"06_torch_ddp: loss {loss:.3f} after {STEPS} steps; largest difference to Gloo: {difference}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
