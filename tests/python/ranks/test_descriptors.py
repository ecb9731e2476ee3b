"""What communicators cost in descriptors."""

import os

import farandole
import numpy as np
from launch import launch


def check_communicators_of_a_host():
    def descriptors():
        return len(os.listdir("/proc/self/fd")) - 1

    farandole.init()
    size = farandole.size()
    before = descriptors()
    kept = [farandole.Communicator() for _ in range(4)]
    for comm in kept:
        assert (comm.allreduce(np.ones(3)) == size).all()
    each = (descriptors() - before) / len(kept)
    # Two doorbells of each rank, two segments and their pollers; nothing that tells whether a rank is alive.
    assert each <= 2 * size + 5, each
    farandole.shutdown()


def test_a_communicator_costs_two_descriptors_for_each_rank_of_the_host():
    launch(8, check_communicators_of_a_host)
