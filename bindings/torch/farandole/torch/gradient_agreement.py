"""Agreement of ranks on gradients: which parameters they have, and which of them have gradients in a step.

Each step has one small sum over ranks, with one number for each parameter. It costs no extra round trip, because a rank
whose gradients are complete submits it in backward. No rank decides alone which gradients to reduce: the sum, which is
equal on all ranks, decides on everything that backward has not submitted. Therefore no rank waits for a reduction that
another rank omits.
"""

import array
import zlib

import torch

from .. import objects
from ..basics import Sum
from . import ops

NONE = 0
DENSE = 1
_SPARSE = 1 << 20  # sums over up to a million ranks do not overflow into the next field
_DIMENSIONS = 1 << 40


def code_of(gradient):
    if gradient is None:
        return NONE
    return _SPARSE + gradient.sparse_dim() * _DIMENSIONS if gradient.is_sparse else DENSE


def code_made_dense(dimensions):
    """The code of a gradient that was sparse, with that number of sparse dimensions, and is reduced as a dense one."""
    return DENSE + dimensions * _DIMENSIONS


def is_sparse(total):
    return total % _DIMENSIONS >= _SPARSE


def is_mixed(total):
    """Whether the gradient is dense on some ranks and sparse on others."""
    return is_sparse(total) and total % _SPARSE != 0


def sparse_dimensions(total):
    """The number of sparse dimensions of the gradient on the ranks that have it."""
    return (total // _DIMENSIONS) // (total % _DIMENSIONS // _SPARSE)


def returned_dimensions(total):
    """The sparse dimensions of a gradient that is reduced as a dense one and returned sparse. 0: it stays dense.

    All ranks that have the gradient must have made it dense from the same number of sparse dimensions.
    """
    ranks = total % _DIMENSIONS
    if is_sparse(total) or ranks == 0 or (total // _DIMENSIONS) % ranks:
        return 0
    return total // _DIMENSIONS // ranks


def expected_next(total):
    """The code that a rank sends in the next step if that step is like this one."""
    if returned_dimensions(total):
        return code_made_dense(returned_dimensions(total))
    if is_sparse(total) and not is_mixed(total):
        return _SPARSE + sparse_dimensions(total) * _DIMENSIONS
    return DENSE if total else NONE


class Presence:
    """The sum of one step.

    A rank contributes the codes of its gradients, and 1 if they differ from the expected codes.
    """

    def __init__(self, name, codes):
        self.name = f"DistributedOptimizer.gradients.{name}"
        self.expected = codes
        self._send = array.array("q", [*codes, 0])
        self._receive = array.array("q", self._send)
        self._tensors = [torch.frombuffer(one, dtype=torch.int64) for one in (self._send, self._receive)]
        self.handle = None

    def submit(self, group, codes=None, priority=0):
        """Submits this rank's part. `codes`: None if they are as expected."""
        if codes is not None:
            self._send[:-1] = array.array("q", codes)
            self._send[-1] = 1
        source, target = self._tensors
        self.handle = ops.submit_allreduce([source], [target], [self.name], group, Sum, priority=priority)

    def wait(self):
        """Returns the totals; None if every rank has the expected codes."""
        try:
            ops.synchronize(self.handle)
        finally:
            self.handle = None
            if self._send[-1]:
                self._send[:] = array.array("q", [*self.expected, 0])
        return self._receive[:-1].tolist() if self._receive[-1] else None


# ---- At the first step of a world -----------------------------------------------------------------------------------


def _summed(numbers, name, process_set):
    return ops.allreduce_(torch.tensor(numbers, dtype=torch.int64), name=name, op=Sum, process_set=process_set).tolist()


def _are_equal(ranks, total, total_of_squares):
    """Whether `ranks` numbers are equal.

    Only then is the square of their sum `ranks` times the sum of their squares.
    """
    return ranks * total_of_squares == total * total


def check_parameters(names, number, process_set):
    """Raises ValueError on all ranks unless all have the same names.

    Returns a number that is equal on all ranks and at least as large as each rank's `number`. It is `number` itself if
    all ranks pass the same one.
    """
    fingerprint = zlib.crc32("\n".join(names).encode())
    mine = [len(names), fingerprint & 0xFFFF, fingerprint >> 16, number]
    sums = _summed([1, *mine, *(one * one for one in mine)], "DistributedOptimizer.parameters", process_set)
    equal = [_are_equal(sums[0], sums[1 + i], sums[5 + i]) for i in range(4)]
    if all(equal[:3]):
        return number if equal[3] else sums[4]
    group = process_set.group("DistributedOptimizer")
    if sums[0] < group.size:  # a rank that has joined takes part in sums only
        raise ValueError(
            "DistributedOptimizer: ranks have different parameters; give all ranks the same named_parameters"
        )
    raise ValueError(_difference(objects.allgather_object(list(names), "DistributedOptimizer.names", group)))


def _difference(names_of_ranks):
    """The text of the error, which is the same on all ranks."""
    first = names_of_ranks[0]
    rank, other = next((rank, names) for rank, names in enumerate(names_of_ranks) if names != first)
    only = [(0, name, rank) for name in first if name not in other]
    only += [(rank, name, 0) for name in other if name not in first]
    what = (
        f"rank {only[0][0]} of the process set has {only[0][1]}, and rank {only[0][2]} has no parameter of that name"
        if only
        else f"rank 0 of the process set has {len(first)} parameters, and rank {rank} has {len(other)}"
    )
    return f"DistributedOptimizer: ranks have different parameters: {what}; give all ranks the same named_parameters"


def exchange(codes, places, layouts, process_set):
    """Of each parameter: the total of its codes, its place in the first rank's order, and whether all ranks hold it in
    memory alike. `places` and `layouts`: this rank's, one number below 2**15 or so for each parameter."""
    count = len(codes)
    is_first = process_set.rank() == 0
    mine = [1, *codes, *(places if is_first else [0] * count), *layouts, *(layout * layout for layout in layouts)]
    sums = _summed(mine, "DistributedOptimizer.layouts", process_set)
    ranks, sums = sums[0], sums[1:]
    totals, places, layouts, squares = (sums[start * count : (start + 1) * count] for start in range(4))
    return totals, places, [_are_equal(ranks, total, square) for total, square in zip(layouts, squares)]


def totals_of(codes, process_set):
    """The sums over ranks of a number for each parameter. Blocks until all ranks have called it."""
    return _summed(codes, "DistributedOptimizer.gradients", process_set)
