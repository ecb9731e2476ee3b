"""More ranks on one host than one memory group has: they share memory in groups, which exchange messages."""

import os

import farandole as fdl
import numpy as np
from launch import launch

# Each of two memory groups has 52: epoll allows 50 chains of four sets to one open file.
RANKS = 104


def sums_of_many_ranks():
    fdl.init()
    rank, size = fdl.rank(), fdl.size()
    assert (fdl.local_rank(), fdl.local_size(), fdl.cross_rank(), fdl.cross_size()) == (rank, RANKS, 0, 1)
    total = size * (size - 1) // 2
    for count in (1, 50_000):
        assert (fdl.allreduce(np.full(count, rank), name=f"sum of {count}") == total).all()
    with fdl.Communicator() as comm:
        assert (comm.allreduce(np.full(1000, rank)) == total).all()
        assert (comm.allgather(np.array([rank])).ravel() == np.arange(size)).all()
    edge = fdl.Group([50, 51, 52, 53])  # two ranks of each memory group
    if rank in (50, 51, 52, 53):
        assert (fdl.allreduce(np.array([rank]), group=edge) == 50 + 51 + 52 + 53).all()
    fdl.shutdown()
    os._exit(0)  # without the end of the interpreter, which takes most of the time of so many ranks


def test_more_than_64_ranks_of_a_host_start_and_sum():
    launch(RANKS, sums_of_many_ranks, deadline_s=100)
