"""Groups and communicators are made on all of their ranks, or on none: one rank is short of descriptors."""

import contextlib
import os
import resource

import farandole
import numpy as np
from launch import launch

MOST_SPARE = 40  # more descriptors than a set-up needs


@contextlib.contextmanager
def _few_descriptors(spare):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = [number for number in range(limits[0]) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _outcomes_of(make, spare):
    """Makes something with `spare` descriptors on rank 1. Returns it, or the error."""
    with _few_descriptors(spare) if farandole.rank() == 1 else contextlib.nullcontext():
        try:
            return make(), None
        except farandole.Error as error:
            return None, error


def _try(words, make, use):
    """Returns how often it was made."""
    made = 0
    for spare in range(MOST_SPARE):
        one, error = _outcomes_of(make, spare)
        count = words.allreduce(np.array([one is not None]).astype(np.int32))[0]
        assert count in (0, farandole.size()), f"{spare} descriptors: {count} ranks have it; here: {error}"
        if count:
            use(one)
            made += 1
        else:
            assert "rank 1 (" in error.text or farandole.rank() == 1, error.text
    return made


def makes():
    farandole.init()
    words = farandole.Communicator()
    ones = np.ones(10)

    def use_communicator(comm):
        assert (comm.allreduce(ones) == farandole.size()).all()
        comm.free()

    def use_group(group):
        assert (farandole.allreduce(ones, name="x", op=farandole.Op.SUM, group=group) == farandole.size()).all()

    for make, use in (
        (farandole.Communicator, use_communicator),
        (lambda: farandole.Group(range(farandole.size())), use_group),
    ):
        made = _try(words, make, use)
        assert 0 < made < MOST_SPARE, made
    print("MADE")


def test_groups_and_communicators_are_made_on_all_ranks_or_on_none():
    for transport in ("shm", "tcp"):
        outputs = launch(3, makes, {"FARANDOLE_TRANSPORT": transport, "FARANDOLE_START_TIMEOUT_S": "10"})
        assert all("MADE" in output for output in outputs)
