"""One rank of a training step that computes, for bench/overlap.sh. Rank 0 prints the median step in milliseconds.

python training_step.py HOW [--forward-ms 200] [--backward-ms 600] [--steps 6]
"""

import argparse
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compare"))
import models


def compute(seconds):
    """Keeps the core busy as a layer does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        compute.square @ compute.square


compute.square = torch.ones(64, 64)


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data, parameter, gradient, forward_s, backward_s):
        ctx.gradient, ctx.backward_s = gradient, backward_s
        compute(forward_s)
        return data + 0

    @staticmethod
    def backward(ctx, gradient):
        compute(ctx.backward_s)
        return gradient, ctx.gradient, None, None, None


class Model(torch.nn.Module):
    """The parameters of ResNet-50 in their order. A layer's gradient is 1 everywhere."""

    def __init__(self, forward_s, backward_s):
        super().__init__()
        counts = models.resnet50()
        self.parts = torch.nn.ParameterList(torch.zeros(count) for count in counts)
        self.given = [torch.ones(count) for count in counts]
        self.forward_s, self.backward_s = forward_s / len(counts), backward_s / len(counts)

    def forward(self, data):
        for parameter, gradient in zip(self.parts, self.given):
            data = Layer.apply(data, parameter, gradient, self.forward_s, self.backward_s)
        return data


def prepare(how, model):
    """Returns the model to call and a function to call after backward()."""
    import farandole.torch as hvd

    if how.startswith("DDP"):
        import torch.distributed as dist

        if how == "DDP, farandole":
            import farandole.torch.distributed  # noqa: F401  registers the backend
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        dist.init_process_group(
            how.split(", ")[1].lower(), init_method="tcp://10.77.0.1:29555",
            rank=int(os.environ["FARANDOLE_RANK"]), world_size=int(os.environ["FARANDOLE_SIZE"]),
        )  # fmt: skip
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), lambda: None
    hvd.init()
    if how == "alone":
        return model, hvd.barrier
    if how == "after backward":
        names = [f"gradient {number}" for number in range(len(model.parts))]

        def reduce_all():
            handles = [
                hvd.allreduce_async_(part.grad, name=name, op=hvd.Average) for part, name in zip(model.parts, names)
            ]
            for handle in handles:
                hvd.synchronize(handle)

        return model, reduce_all
    compression = hvd.Compression.int8 if how == "optimizer, int8" else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), named_parameters=model.named_parameters(), compression=compression
    )
    return model, optimizer.synchronize


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--forward-ms", type=float, default=200)
    parser.add_argument("--backward-ms", type=float, default=600)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    model = Model(options.forward_ms / 1e3, options.backward_ms / 1e3)
    called, finish = prepare(options.how, model)
    data = torch.zeros(1, requires_grad=True)
    times = []
    for _ in range(3 + options.steps):
        model.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        called(data).sum().backward()
        finish()
        times.append((time.perf_counter() - begin) * 1e3)
        for part in model.parts:
            assert (part.grad[0] - 1).abs() < 0.02, part.grad[0]
    if os.environ.get("FARANDOLE_RANK", "0") == "0":
        print(f"{statistics.median(times[3:]):.1f}")


if __name__ == "__main__":
    main()
