"""backend="farandole" for torch.distributed: DistributedDataParallel, FSDP2, DTensor and all of c10d.

    import farandole.torch
    torch.distributed.init_process_group("farandole")

The ranks exchange the rendezvous address through torch's own store. env://, tcp:// and file:// work as usual, and no
further setting is needed.
"""

import torch.distributed as dist

from ...torch_backend import register
from ..versions import notify_once
from .mixed import MixedProcessGroup, being_made, complete
from .order import in_order
from .process_group import ProcessGroup
from .work import Work
from .world import world_for

__all__ = ["Options", "ProcessGroup", "Work", "in_order", "monitored_barrier", "register"]


class Options:
    """Settings of the library for pg_options, by the names that `farandole config` lists: Options(transport="tcp")."""

    def __init__(self, **knobs):
        self.knobs = {name: str(int(value)) if isinstance(value, bool) else str(value) for name, value in knobs.items()}


def create(options, backend_options=None):
    """Creates a group. torch.distributed calls it for each new group."""
    notify_once(options.group_rank)
    knobs = backend_options.knobs if isinstance(backend_options, Options) else {}
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    plain, backends = being_made()
    if plain is not None:
        complete(plain, backends, options, backend_options)
    world, members = world_for(options.store, rank, size, ranks, options.timeout, knobs)
    arguments = (options.store, rank, size, options.timeout, world, members, str(options.group_id))
    if plain is not None:
        return MixedProcessGroup(*arguments, plain=plain, backends=backends)
    return ProcessGroup(*arguments)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """torch.distributed.monitored_barrier for this backend. torch's own function supports only Gloo.

    A rank that does not arrive within `timeout` (a timedelta; None: the group's) is named in a TimeoutError, which is
    also a DistBackendError. With wait_all_ranks, rank 0 waits until the timeout and names all missing ranks.
    """
    group = group if group is not None else dist.group.WORLD
    group.monitored_barrier(timeout, wait_all_ranks)
