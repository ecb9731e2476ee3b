"""The messages that torch.distributed.batch_isend_irecv starts at once, as a process group needs to know them.

torch has no hook for it for groups that are written in Python, so the function is wrapped. A program that imported the
function before the first group was made sends the same messages, in several groups of NCCL.
"""

import collections
import functools

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def _peers_of(operations, group):
    peers = collections.Counter()
    for one in operations:
        if one.tensor.device.type == "cuda" and one.tensor.numel():
            peer = getattr(one, "group_peer", None)
            peers[dist.get_group_rank(group, one.peer) if peer is None else peer] += 1
    return peers


def install(kind):
    """Wraps batch_isend_irecv for groups of the class `kind`. Does nothing the second time."""
    plain = c10d.batch_isend_irecv
    if hasattr(plain, "_farandole"):
        return

    @functools.wraps(plain)
    def batch_isend_irecv(p2p_op_list):
        group = (p2p_op_list[0].group if p2p_op_list else None) or c10d._get_default_group()
        if not isinstance(group, kind):
            return plain(p2p_op_list)
        with group.batched(_peers_of(p2p_op_list, group)):
            return plain(p2p_op_list)

    batch_isend_irecv._farandole = True
    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch_isend_irecv
