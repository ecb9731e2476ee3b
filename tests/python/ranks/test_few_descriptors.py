"""Jobs of more ranks than a process may open descriptors: idle connections are closed and made again."""

import os
import resource

import farandole
import numpy as np
from launch import launch

RANKS = 48
DESCRIPTORS = 64
TURNS = 3
COUNT = 2000  # elements of float64 for each pair: pairs exchange them directly


def sent(rank, to, turn):
    return np.arange(COUNT, dtype=np.float64) + 1000 * rank + to + turn


def check_alltoalls_and_rings_by_turns():
    # Rank 0 serves the coordinator, which has a connection with each rank.
    limit = DESCRIPTORS + (RANKS + 8 if os.environ["FARANDOLE_RANK"] == "0" else 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    comm = farandole.Communicator()
    for turn in range(TURNS):
        mine = np.concatenate([sent(rank, to, turn) for to in range(size)])
        expected = np.concatenate([sent(one, rank, turn) for one in range(size)])
        assert (comm.alltoall(mine, algorithm="pairwise") == expected).all(), f"alltoall, turn {turn}"
        total = comm.allreduce(np.full(size * 8, rank + turn, dtype=np.float64), algorithm="ring")
        assert (total == sum(range(size)) + size * turn).all(), f"allreduce, turn {turn}"
    print("descriptors", len(os.listdir("/proc/self/fd")) - 1, flush=True)
    farandole.shutdown()


def test_48_ranks_with_64_descriptors():
    environment = {"FARANDOLE_TRANSPORT": "tcp", "FARANDOLE_LOG_LEVEL": "info"}
    outputs = launch(RANKS, check_alltoalls_and_rings_by_turns, environment=environment, deadline_s=240)
    assert all("idle ones are closed from now on" in text for text in outputs[1:]), outputs[1]
    for text in outputs[1:]:
        (line,) = [line for line in text.splitlines() if line.startswith("descriptors ")]
        assert int(line.split()[1]) <= DESCRIPTORS


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
