"""Hugging Face Accelerate over backend="farandole": the program makes the process group first, and Accelerate uses it.

    pip install accelerate
    torchrun --nproc-per-node 2 examples/10_accelerate.py

(On CPUs Accelerate would make a group over Gloo itself, and has no option for another backend.)
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("farandole")
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    targets = inputs @ torch.randn(16, 1)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(10):
        for batch, wanted in loader:
            loss = nn.functional.mse_loss(model(batch), wanted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    losses = accelerator.gather(loss.detach().reshape(1))
    weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
    assert all(torch.equal(row, weights[0]) for row in weights), "all ranks hold the same weights"
    accelerator.print(
        f"10_accelerate: backend {dist.get_backend()}, {accelerator.num_processes} ranks, loss {losses.mean():.4f}"
    )
    accelerator.end_training()  # this ends the process group too


if __name__ == "__main__":
    main()
