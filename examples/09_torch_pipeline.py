"""A pipeline over backend="farandole": each rank has one layer and sends its output on; backward sends gradients back.

    torchrun --nproc-per-node 2 examples/09_torch_pipeline.py

All micro-batches go forward before the first goes back (as in GPipe). The gradients are those of the whole model in one
process, bit for bit: the same operations in the same order.
"""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS, MICRO_BATCHES = 24, 8, 6


def micro_batch(number):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(number))


def run_stage(layer, rank, size):
    kept, sends = [], []
    for number in range(MICRO_BATCHES):
        inputs = micro_batch(number)
        if rank > 0:
            dist.recv(inputs, rank - 1, tag=number)
        inputs.requires_grad_(rank > 0)
        outputs = torch.tanh(layer(inputs))
        kept.append((inputs, outputs))
        if rank < size - 1:
            sends.append(dist.isend(outputs.detach(), rank + 1, tag=number))
    for number, (inputs, outputs) in enumerate(kept):
        if rank == size - 1:
            outputs.square().mean().backward()
        else:
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, rank + 1, tag=number)
            outputs.backward(gradient)
        if rank > 0:
            sends.append(dist.isend(inputs.grad, rank - 1, tag=number))
    for send in sends:
        send.wait()
    return layer.weight.grad


def main():
    dist.init_process_group("farandole")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(size)]
    gradient = run_stage(layers[rank], rank, size)

    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(size)]
    for number in range(MICRO_BATCHES):
        outputs = micro_batch(number)
        for layer in layers:
            outputs = torch.tanh(layer(outputs))
        outputs.square().mean().backward()
    assert torch.equal(gradient, layers[rank].weight.grad)
    dist.barrier()
    if rank == 0:
        print(f"09_torch_pipeline: {MICRO_BATCHES} micro-batches through {size} stages; gradients equal one process's")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
