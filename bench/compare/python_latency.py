"""farandole.torch as a program written for Horovod uses it: each call of 4 bytes, and steps of a DistributedOptimizer.

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


def measure_four_bytes(library):
    """Each call timed, of the three ways to reduce 4 bytes."""
    import farandole
    import numpy

    hvd = library.hvd
    tensor, array = torch.ones(1), numpy.ones(1, numpy.float32)

    def in_place():
        hvd.allreduce_(tensor, op=hvd.Sum, name="in place")

    def without_gradient():
        return hvd.allreduce(tensor, op=hvd.Sum, name="without gradient")

    def numpy_array():
        return farandole.allreduce(array, op=farandole.SUM, name="array")

    def rewrite():
        tensor.fill_(1)

    in_place()
    if tensor.item() != library.size or numpy_array()[0] != library.size:
        raise SystemExit("wrong sum of 4 bytes")
    rewrite()
    ranks.report(library, "4 B in place", ranks.each_call(in_place, rewrite))
    ranks.report(library, "4 B without gradient", ranks.each_call(without_gradient, lambda: None))
    ranks.report(library, "4 B of NumPy", ranks.each_call(numpy_array, lambda: None))


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
    measure_four_bytes(library)
    if options.tensors:
        measure_tensors(library, options.tensors, options.seconds)
        measure_optimizer(library, options.tensors, options.seconds)
    library.hvd.shutdown()


if __name__ == "__main__":
    ranks.main(body)
