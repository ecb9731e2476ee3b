"""One rank of a training step that computes, for bench/overlap.sh. Rank 0 prints the median step in milliseconds.

python training_step.py HOW [--model resnet50|bert_base] [--compute core|accelerator] [--forward-ms 200]
    [--backward-ms 600] [--steps 6] [--waits]

--waits prints in which parts of the median step rank 0 waits, on its standard error.
"""

import argparse
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compare"))
import models

WARM_UP = 7  # steps; the order of the reductions is locked when it has repeated four times


def compute_on_core(seconds):
    """Keeps the core busy as a layer does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        SQUARE @ SQUARE


SQUARE = torch.ones(64, 64)


class Accelerator:
    """Computes one layer after the other while the core of the rank is free.

    A layer begins when the one before it has ended, so a late wake-up of this process delays no later layer.
    """

    def __init__(self):
        self.free_at = time.perf_counter()

    def __call__(self, seconds):
        self.free_at += seconds
        time.sleep(max(0.0, self.free_at - time.perf_counter()))

    def waits(self, action):
        """Runs an action whose end the next layer waits for."""
        begin = time.perf_counter()
        action()
        end = time.perf_counter()
        if end - begin > 0.002:  # less is no wait
            self.free_at = max(self.free_at, end)


def run(action):
    action()


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, data, parameter, gradient, compute, forward_s, backward_s):
        ctx.gradient, ctx.compute, ctx.backward_s = gradient, compute, backward_s
        compute(forward_s)
        return data + 0

    @staticmethod
    def backward(ctx, gradient):
        ctx.compute(ctx.backward_s)
        return gradient, ctx.gradient, None, None, None, None


class Model(torch.nn.Module):
    """The parameters of a model in their order. A layer's gradient is 1 everywhere."""

    def __init__(self, counts, compute, forward_s, backward_s):
        super().__init__()
        self.compute, self.wait = compute, getattr(compute, "waits", run)
        self.parts = torch.nn.ParameterList(torch.zeros(count) for count in counts)
        self.given = [torch.ones(count) for count in counts]
        self.forward_s, self.backward_s = forward_s / len(counts), backward_s / len(counts)

    def forward(self, data):
        self.waited = []
        for parameter, gradient in zip(self.parts, self.given):
            begin = time.perf_counter()
            self.wait(parameter.detach)  # reads it, as a layer does
            self.waited.append((time.perf_counter() - begin) * 1e3)
            data = Layer.apply(data, parameter, gradient, self.compute, self.forward_s, self.backward_s)
        return data


def prepare(how, model):
    """Returns the model to call, and functions to call after backward() and at the end."""
    import farandole.torch as hvd

    sgd = torch.optim.SGD(model.parameters(), lr=2.0**-10)

    if how.startswith("DDP"):
        import torch.distributed as dist

        if how == "DDP, farandole":
            import farandole.torch.distributed  # noqa: F401  registers the backend
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        dist.init_process_group(
            how.split(", ")[1].lower(), init_method="tcp://10.77.0.1:29555",
            rank=int(os.environ["FARANDOLE_RANK"]), world_size=int(os.environ["FARANDOLE_SIZE"]),
        )  # fmt: skip
        ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        return ddp, sgd.step, nothing
    hvd.init()
    if how == "alone":

        def step_alone():
            hvd.barrier()
            sgd.step()

        return model, step_alone, nothing
    if how == "after backward":
        names = [f"gradient {number}" for number in range(len(model.parts))]

        def reduce_all():
            handles = [
                hvd.allreduce_async_(part.grad, name=name, op=hvd.Average) for part, name in zip(model.parts, names)
            ]
            for handle in handles:
                hvd.synchronize(handle)
            sgd.step()

        return model, reduce_all, nothing
    if "no priorities" in how:
        from farandole.torch.gradient_overlap import OverlappedReductions

        OverlappedReductions._priority_of = lambda self, bucket: 0
    optimizer = hvd.DistributedOptimizer(
        sgd, model.named_parameters(), compression=hvd.Compression.int8 if "int8" in how else hvd.Compression.none,
        overlap_forward="overlap" in how
    )  # fmt: skip
    return model, optimizer.step, optimizer.finish_step


def nothing():
    pass


def show_waits(steps):
    """Prints how long rank 0 waits in the median step: before the layers of the forward pass, and in step()."""
    medians = [statistics.median(one) for one in zip(*steps)]
    ends = [0, 1, len(medians) // 4, len(medians) // 2, 3 * len(medians) // 4, len(medians) - 1]
    names = ["layer 1", "1st quarter", "2nd quarter", "3rd quarter", "4th quarter"]
    parts = [f"{name} {sum(medians[a:b]):.1f}" for name, a, b in zip(names, ends, ends[1:])]
    print(f"waits in ms: {', '.join(parts)}, step() {medians[-1]:.1f}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--compute", default="core", choices=["core", "accelerator"])
    parser.add_argument("--forward-ms", type=float, default=200)
    parser.add_argument("--backward-ms", type=float, default=600)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--waits", action="store_true")
    options = parser.parse_args()
    compute = compute_on_core if options.compute == "core" else Accelerator()
    model = Model(getattr(models, options.model)(), compute, options.forward_ms / 1e3, options.backward_ms / 1e3)
    called, step, finish = prepare(options.how, model)
    data = torch.zeros(1, requires_grad=True)
    times, waits = [], []
    for _ in range(WARM_UP + options.steps):
        model.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        called(data).sum().backward()
        end = time.perf_counter()
        model.wait(step)
        waits.append([*model.waited, (time.perf_counter() - end) * 1e3])
        times.append((time.perf_counter() - begin) * 1e3)
    finish()
    for part in model.parts:
        assert (part[0] + len(times) * 2.0**-10).abs() < 0.001, part[0]
    if os.environ.get("FARANDOLE_RANK", "0") == "0":
        print(f"{statistics.median(times[WARM_UP:]):.1f}")
        if options.waits:
            show_waits(waits[WARM_UP:])


if __name__ == "__main__":
    main()
