"""Allreduce through torch.distributed: each size by the method of measure.h, in place as it requires, or tensors.

python torch_allreduce.py [--backend gloo|farandole] [--ranks 2] [--sizes 4,1024 | --tensors 64,9408] [--seconds 0.1]
    [--each-call]

--each-call times each call of 4 bytes by itself, before the sizes.
"""

import gradients
import ranks
import torch
import torch.distributed as dist


class Torch:
    """Adapts torch.distributed to the interface that ranks.py measures."""

    def __init__(self, rank, size, folder, backend):
        self.rank = rank
        self.size = size
        if backend == "farandole":
            import farandole.torch  # noqa: F401, registers the backend
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)

    def barrier(self):
        dist.barrier()

    def allreduce(self, tensor):
        dist.all_reduce(tensor)

    def max(self, values):
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def from_first_rank(self, value):
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(tensor, 0)
        return tensor.item()


def measure_tensors(library, counts, seconds):
    """One operation a tensor, all in flight; one operation for all; and as DistributedDataParallel reduces them."""
    tensors = [torch.ones(count) for count in counts]
    whole = torch.ones(sum(counts))

    def each(calls):
        for _ in range(calls):
            for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

    def one(calls):
        for _ in range(calls):
            dist.all_reduce(whole)

    def rewrite():
        for tensor in [whole, *tensors]:
            tensor.fill_(1)

    ranks.report(library, "one operation a tensor", ranks.sample(library, seconds, each, rewrite))
    ranks.report(library, "one operation for all", ranks.sample(library, seconds, one, rewrite))
    model = gradients.Model(counts)
    parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    gradients.measure_step(library, "DDP", parallel, parallel.no_sync, seconds)


def body(rank, size, folder, options):
    library = Torch(rank, size, folder, options.backend)
    if options.tensors:
        measure_tensors(library, options.tensors, options.seconds)
    else:
        if options.each_call:
            tensor = torch.ones(1)
            times = ranks.each_call(lambda: dist.all_reduce(tensor), lambda: tensor.fill_(1))
            ranks.report(library, "4 B, each call", times)
        ranks.measure_sizes(library, options.sizes, options.seconds)
    dist.destroy_process_group()


def add_arguments(parser):
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--each-call", action="store_true")


if __name__ == "__main__":
    ranks.main(body, add_arguments)
