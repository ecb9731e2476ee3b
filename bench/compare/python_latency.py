"""farandole.torch as a program written for Horovod uses it: 4 bytes in place, and steps of a DistributedOptimizer.

python python_latency.py [--ranks 2] [--seconds 0.3] [--tensors 64,9408]
"""

import os

import gradients
import ranks
import torch


class FarandoleTorch:
    """Adapts farandole.torch to the interface that ranks.py measures."""

    def __init__(self, rank, size, folder):
        os.environ.update(
            FARANDOLE_RANK=str(rank),
            FARANDOLE_SIZE=str(size),
            FARANDOLE_RENDEZVOUS=f"file://{folder}/rendezvous",
            FARANDOLE_JOB_KEY="a comparison on one host",
        )
        import farandole.torch as hvd

        hvd.init()
        self.hvd = hvd
        self.rank = rank
        self.size = size

    def barrier(self):
        self.hvd.barrier()

    def max(self, values):
        return self.hvd.allreduce(torch.tensor(values, dtype=torch.float64), op=self.hvd.Max, name="max").tolist()

    def from_first_rank(self, value):
        return self.hvd.broadcast_(torch.tensor([value], dtype=torch.float64), 0, name="first").item()


def measure_four_bytes(library, seconds):
    hvd = library.hvd
    tensor = torch.ones(1)

    def batch(calls):
        for _ in range(calls):
            hvd.allreduce_(tensor, op=hvd.Sum, name="four bytes")

    def rewrite():
        tensor.fill_(1)

    batch(1)
    if tensor.item() != library.size:
        raise SystemExit("wrong sum of 4 bytes")
    batch(500)
    rewrite()
    ranks.report(library, "4 B in place", ranks.sample(library, seconds, batch, rewrite))


def measure_tensors(library, counts, seconds):
    hvd = library.hvd
    tensors = [torch.ones(count) for count in counts]

    def each(calls):
        for _ in range(calls):
            handles = [
                hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"tensor {number}")
                for number, tensor in enumerate(tensors)
            ]
            for handle in handles:
                hvd.synchronize(handle)

    def rewrite():
        for tensor in tensors:
            tensor.fill_(1)

    for _ in range(3):
        each(1)
        rewrite()
    ranks.report(library, "one operation a tensor", ranks.sample(library, seconds, each, rewrite))


def measure_optimizer(library, counts, seconds):
    """Runs backward with its hooks and waits for the submitted operations; the optimizer's update is not measured."""
    model = gradients.Model(counts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wrapped = library.hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    gradients.measure_step(library, "DistributedOptimizer", model, None, seconds, wrapped.synchronize)


def body(rank, size, folder, options):
    library = FarandoleTorch(rank, size, folder)
    measure_four_bytes(library, options.seconds)
    if options.tensors:
        measure_tensors(library, options.tensors, options.seconds)
        measure_optimizer(library, options.tensors, options.seconds)
    library.hvd.shutdown()


if __name__ == "__main__":
    ranks.main(body)
