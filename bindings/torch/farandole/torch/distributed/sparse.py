"""all_reduce of sparse tensors: every rank gathers all indices and values and adds them up in the same order."""

import torch

from ... import errors
from . import operands
from .calls import CallOptions

_NAMES = ("entries", "sparse dimensions", "dimensions")


def sparse_allreduce(group, tensor, opts):
    """Reduces a sparse tensor in place, and blocks. SUM and AVG only.

    The result replaces the tensor's own indices and values, which may differ between ranks.
    """
    name = operands.op_name(opts.reduceOp)
    if name not in ("SUM", "AVG"):
        raise errors.InvalidArgumentError(
            f"all_reduce of a sparse tensor takes SUM or AVG, not {name}; call to_dense() on it"
        )
    blocking = CallOptions(timeout=opts.timeout)
    blocking.asyncOp = False
    mine = tensor.detach().coalesce()
    counts = _entries_of_all(group, mine, blocking)
    indices = _gather(group, mine.indices(), counts, blocking)
    values = _gather(group, mine.values().movedim(0, -1), counts, blocking)
    total = torch.sparse_coo_tensor(indices, values.movedim(-1, 0), mine.shape, check_invariants=False).coalesce()
    if name == "AVG":
        total = total / group.size()
    with torch.no_grad():
        tensor.copy_(total)


def _entries_of_all(group, mine, opts):
    """The number of entries of each rank. InvalidArgumentError on all ranks if their tensors have different shapes."""
    own = torch.tensor([mine._nnz(), mine.sparse_dim(), mine.dim(), *mine.shape])  # on the CPU, wherever `mine` is
    if own.numel() > 11:
        raise errors.InvalidArgumentError(f"all_reduce of a sparse tensor takes up to 8 dimensions, not {mine.dim()}")
    header = torch.zeros(11, dtype=torch.int64)
    header[: own.numel()] = own
    headers = torch.empty(group.size() * header.numel(), dtype=torch.int64)
    group.all_gather_single(headers, header, opts)
    headers = headers.view(group.size(), -1)
    for rank, other in enumerate(headers):
        if not torch.equal(other[1:], headers[0, 1:]):
            shapes = [tuple(one[3 : 3 + one[2]].tolist()) for one in (headers[0], other)]
            raise errors.InvalidArgumentError(
                f"all_reduce of a sparse tensor: rank 0 of the group has shape {shapes[0]} with {headers[0, 1]} sparse "
                f"dimensions, rank {rank} has {shapes[1]} with {other[1]}; all ranks must reduce the same tensor"
            )
    return headers[:, 0].tolist()


def _gather(group, mine, counts, opts):
    """The blocks of shape (..., entries) of all ranks, joined along the last dimension."""
    parts = [torch.empty(*mine.shape[:-1], count, dtype=mine.dtype, device=mine.device) for count in counts]
    group.allgather([parts], [mine.contiguous()], opts)
    return torch.cat(parts, -1)
