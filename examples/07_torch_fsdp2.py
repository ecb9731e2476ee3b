"""fully_shard (FSDP2) over backend="farandole", and the same over Gloo: on two ranks the weights are equal bit for bit.

torchrun --nproc-per-node 2 examples/07_torch_fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

STEPS = 10


def train(group):
    torch.manual_seed(0)
    mesh = DeviceMesh.from_group(group, "cpu")
    model = nn.Sequential(*[nn.Sequential(nn.Linear(48, 48), nn.GELU()) for _ in range(4)], nn.Linear(48, 10))
    for block in model[:4]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs = torch.randn(16, 48, generator=data)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), [parameter.full_tensor() for parameter in model.parameters()]


def main():
    dist.init_process_group("farandole")
    loss, ours = train(dist.group.WORLD)
    _, theirs = train(dist.new_group(backend="gloo"))
    difference = max((one - other).abs().max().item() for one, other in zip(ours, theirs))
    assert difference == 0 if dist.get_world_size() <= 2 else difference < 1e-3, difference
    if dist.get_rank() == 0:
        print(f"07_torch_fsdp2: loss {loss:.3f} after {STEPS} steps; largest difference to Gloo: {difference}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
