"""Buckets: gradients that are reduced together, their choice, and the order of their elements."""

import math

import torch

from ..elastic_client import is_elastic
from .handles import synchronize
from .tensors import empty

BUCKET_BYTES = 1 << 20
# On a device a bucket costs a collective and two kernels, some 50 us of which the host's launches are most.
DEVICE_BUCKET_BYTES = 16 << 20
SHARED_BUCKET_BYTES = 25 << 20
# Where each copy is a launch, new gradients move into their bucket together. On the CPU each moves while it is in the
# cache.
MOVE_TOGETHER = {"cuda"}
_PART_ELEMENTS = 1024  # a part has a multiple of them, unless it is the last one
_ALIGNMENT = 64  # bytes; each gradient in a bucket begins at a multiple

BAD_GROUPS = "groups should be a non-negative integer or a list of lists of torch.Tensor"


class Bucket:
    """Parameters whose gradients are reduced together, and the reductions of them that are in flight."""

    is_shared = False

    def __init__(self, parameters, priority, is_given=False):
        self.parameters = parameters
        self.priority = priority
        self.is_given = is_given  # by the program's `groups`
        self.has_known_shapes = False  # they were reduced before, so they are the same on all ranks
        self.waiting = 0  # the number of missing gradients before the reduction starts
        self.is_launched = False  # in this step
        self.streams = []  # the CUDA streams on which gradients were computed, if the bucket has several parameters
        self.in_flight = []  # pairs: a handle or a function that waits, and a function that stores the result

    def start_over(self, expected):
        """Begins a step. `expected`: {parameter: code}, with 0 if no gradient is expected."""
        self.waiting = sum(1 for parameter in self.parameters if expected.get(parameter, 1))
        self.is_launched = False
        self.in_flight.clear()
        self.streams.clear()


class SharedBucket(Bucket):
    """Parameters of one type and device whose gradients are adjacent in memory.

    On the CPU all ranks of the host map that memory. On CUDA it is symmetric memory of NCCL, where possible.
    """

    is_shared = True

    def __init__(self, parameters, priority, process_set, is_local=False):
        """is_local: the other ranks may not be creating the same bucket now."""
        super().__init__(parameters, priority)
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.starts, count = [], 0
        step = max(1, _ALIGNMENT // self.dtype.itemsize)
        for parameter in parameters:
            self.starts.append(count)
            count += (parameter.numel() + step - 1) // step * step
        count = max(count, 1)
        # A rank that joins an elastic job later cannot allocate collectively with ranks that already have.
        alone = self.device.type == "cuda" and (is_local or is_elastic())
        self.flat = (
            torch.zeros(count, dtype=self.dtype, device=self.device)
            if alone
            else empty(count, dtype=self.dtype, device=self.device, process_set=process_set)
        )
        self.version = 0  # of `flat`, when the reduction started
        # Gradients that the program has dropped (zero_grad) move in together.
        self.moves_together = self.device.type in MOVE_TOGETHER and len(parameters) > 1
        self.views = {}
        self.lay_out({})

    def lay_out(self, contiguous):
        """Gives gradients the strides of their parameters, and those in `contiguous` contiguous strides."""
        for parameter, start in zip(self.parameters, self.starts):
            strides = _contiguous_strides(parameter.shape) if parameter in contiguous else dense_strides(parameter)
            self.views[parameter] = self.flat.as_strided(parameter.shape, strides, start)

    def fits(self):
        """Whether the parameters still have the bucket's type and device.

        model.double() and .to(device) change them.
        """
        return all(one.dtype == self.dtype and one.device == self.device for one in self.parameters)

    def take_in(self, parameters):
        """Moves gradients into the bucket. Autograd accumulates into them there until they are set to None."""
        outside = [one for one in parameters if one.grad is not self.views[one]]
        with torch.no_grad():
            for parameter in outside:
                if parameter.grad is None:
                    self.views[parameter].zero_()
            copied = [one for one in outside if one.grad is not None]
            if len(copied) == 1:
                self.views[copied[0]].copy_(copied[0].grad)
            elif copied:
                torch._foreach_copy_([self.views[one] for one in copied], [one.grad for one in copied])
            self._keep_until_copied([one.grad for one in copied])
        for parameter in outside:
            parameter.grad = self.views[parameter]

    def _keep_until_copied(self, gradients):
        """Their memory is of the streams that computed them, and may be reused there once they are dropped."""
        if any(stream != torch.cuda.current_stream(self.device) for stream in self.streams):
            for gradient in gradients:
                gradient.record_stream(torch.cuda.current_stream(self.device))

    def release(self, parameter):
        """Gives the gradient its own memory again."""
        if parameter.grad is self.views[parameter]:
            parameter.grad = parameter.grad.clone()

    def clear(self, parameter):
        """Makes the bucket's reductions carry zeros for the parameter from now on."""
        self.release(parameter)
        with torch.no_grad():
            self.views[parameter].zero_()


def dense_strides(parameter):
    return torch.empty_like(parameter, device="meta").stride()


def _contiguous_strides(shape):
    return torch.empty(shape, device="meta").stride()


def wait_for(in_flight):
    """Waits for reductions, also if one fails, because those in flight use the gradients. Returns the first error."""
    failure = None
    for wait, finish in in_flight:
        try:
            if callable(wait):
                finish(wait())
            else:
                synchronize(wait)
                finish()
        except Exception as error:
            failure = failure or error
    return failure


def in_parts(tensor, most_bytes):
    """Parts of about equal size that cover a contiguous tensor: itself if it has no more than 1.5 * most_bytes."""
    count = round(tensor.numel() * tensor.element_size() / most_bytes) if most_bytes else 1
    if count < 2:
        return [tensor]
    # Compressed blocks are not divided.
    size = -(-tensor.numel() // (count * _PART_ELEMENTS)) * _PART_ELEMENTS
    return list(tensor.view(-1).split(size))


# ---- Choice of the gradients of a bucket ----------------------------------------------------------------------------


def checked_groups(parameters, groups):
    """The lists of parameters in `groups`, and a list of one for each other parameter.

    None if `groups` is a number: that needs the order of rank 0. ValueError for malformed groups.
    """
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(BAD_GROUPS)
        return None
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(BAD_GROUPS)
    chosen = [parameter for group in groups for parameter in group]
    inside = {id(parameter) for parameter in chosen}
    if len(inside) < len(chosen):
        raise ValueError("A parameter can only appear once in groups.")
    known = {id(parameter) for parameter in parameters}
    if not inside <= known:
        raise ValueError("groups has a tensor that is not a parameter of this optimizer, or needs no gradient")
    return [list(group) for group in groups if group] + [[one] for one in parameters if id(one) not in inside]


def split(ordered, count):
    """Divides `ordered` into `count` groups of neighbours."""
    count = min(count, len(ordered)) or 1
    size, more = divmod(len(ordered), count)
    ends = [size * (i + 1) + min(i + 1, more) for i in range(count)]
    return [ordered[start:end] for start, end in zip([0, *ends], ends)]


def of_size(ordered, limit=None):
    """Groups of neighbours with one type and device and about `limit` bytes. A larger parameter forms its own group.

    limit None: DEVICE_BUCKET_BYTES of parameters on a device, BUCKET_BYTES of others.
    """
    groups, open_groups = [], {}
    for parameter in ordered:
        kind = parameter.dtype, parameter.device
        size = parameter.numel() * parameter.element_size()
        group, left = open_groups.get(kind, (None, 0))
        if group is None or size > left:
            group, left = [], limit or (DEVICE_BUCKET_BYTES if parameter.is_cuda else BUCKET_BYTES)
            groups.append(group)
        group.append(parameter)
        open_groups[kind] = group, left - size
    return groups


def in_shared_buckets(groups):
    """Lists of parameters that can share a bucket, and lists of those that cannot."""
    shared, others = [], []
    for group in groups:
        of_kind = {}
        for parameter in group:
            if parameter.device.type in ("cpu", "cuda"):
                of_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
            else:
                others.append([parameter])
        shared += of_kind.values()
    return shared, others


# ---- Order of the elements in a message -----------------------------------------------------------------------------


def memory_order(parameter):
    """The parameter's dimensions in the order of its memory layout; None for the usual order."""
    if parameter.is_contiguous() or parameter.dim() > 5:
        return None
    strides = dense_strides(parameter)
    order = tuple(sorted(range(parameter.dim()), key=lambda dimension: (-strides[dimension], dimension)))
    return None if order == tuple(range(parameter.dim())) else order


def code_of_order(order):
    """A number below 120 for an order of up to five dimensions; 0 for the usual order."""
    if order is None:
        return 0
    return sum(
        sum(later < one for later in order[place + 1 :]) * math.factorial(len(order) - 1 - place)
        for place, one in enumerate(order)
    )


def inverse_order(order):
    inverse = [0] * len(order)
    for place, dimension in enumerate(order):
        inverse[dimension] = place
    return inverse
