"""DTensor and tensor parallelism over backend="farandole": a two-layer perceptron whose weights are spread over the
ranks.

torchrun --nproc-per-node 2 examples/08_torch_dtensor.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main():
    dist.init_process_group("farandole")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    matrix = torch.arange(60.0).view(10, 6)
    sharded = distribute_tensor(matrix, mesh, [Shard(0)])
    product = sharded.redistribute(mesh, [Shard(1)]) @ distribute_tensor(matrix.t().contiguous(), mesh, [Shard(0)])
    assert torch.equal(product.redistribute(mesh, [Replicate()]).to_local(), matrix @ matrix.t())

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    parallel = parallelize_module(copy.deepcopy(plain), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inputs = torch.randn(4, 16)
    difference = (parallel(inputs) - plain(inputs)).abs().max().item()
    assert difference < 1e-5, difference  # the same products, added in another order
    if dist.get_rank() == 0:
        local = parallel[0].weight.to_local().shape[0]
        print(f"08_torch_dtensor: {local} of 64 rows here; largest difference to one process: {difference:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
