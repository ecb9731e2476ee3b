"""What communicators and ranks cost in descriptors, and jobs of more ranks than a process may open descriptors."""

import os
import resource

import farandole
import numpy as np
from launch import launch

COMMUNICATORS = 24
MANY_COMMUNICATORS = 130  # more than epoll allows sets that lead to one open file
RANKS = 72
DESCRIPTORS = 64


def _descriptors():
    return len(os.listdir("/proc/self/fd")) - 1


def communicators_of_a_host():
    farandole.init()
    size = farandole.size()
    before = _descriptors()
    kept = [farandole.Communicator() for _ in range(COMMUNICATORS)]
    for comm in kept:
        assert (comm.allreduce(np.ones(3)) == size).all()
    # A doorbell of each rank, a segment, an event and two sets; and of each other rank one for eight communicators.
    most = COMMUNICATORS * (size + 4) + (size - 1) * COMMUNICATORS // 8
    assert _descriptors() - before <= most, (_descriptors() - before, most)
    for comm in kept:
        comm.free()
    # One of each communicator would be 24 more. Rank 0 serves the coordinator, which closes some of its own meanwhile.
    assert _descriptors() < before + 4, (_descriptors(), before)
    farandole.shutdown()


def test_a_communicator_of_a_host_costs_a_descriptor_for_each_rank():
    launch(6, communicators_of_a_host)


def many_communicators():
    farandole.init()
    size = farandole.size()
    kept = [farandole.Communicator() for _ in range(MANY_COMMUNICATORS)]
    for comm in kept:
        assert (comm.allreduce(np.ones(3)) == size).all()
    groups = [farandole.Group(list(range(size))) for _ in range(MANY_COMMUNICATORS)]
    for number, group in enumerate(groups):
        assert (farandole.allreduce(np.full(2, number), group=group, op=farandole.Op.SUM) == size * number).all()
    farandole.shutdown()


def test_a_host_has_many_communicators_and_groups():
    launch(3, many_communicators)


def few_descriptors():
    # Rank 0 serves the coordinator, with a connection to each rank, and raises its soft limit for them.
    serves = os.environ["FARANDOLE_RANK"] == "0"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if serves else DESCRIPTORS
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    farandole.init()
    rank, size = farandole.rank(), farandole.size()
    comm = farandole.Communicator()
    total = size * (size - 1) // 2
    for count in (1, 4000):
        assert (comm.allreduce(np.full(count, rank, dtype=np.float64), algorithm="ring") == total).all()
        assert (farandole.allreduce(np.full(count, rank), name=f"{count}", op=farandole.Op.SUM) == total).all()
    farandole.shutdown()
    os._exit(0)  # without the end of the interpreter, which takes most of the time of so many ranks


def test_ranks_are_more_than_the_descriptors_of_each():
    launch(RANKS, few_descriptors, environment={"FARANDOLE_TRANSPORT": "tcp"}, deadline_s=200)
