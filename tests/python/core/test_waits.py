"""Waits for named operations that time out: the error names the ranks that have not submitted the operation."""

import os
import time

import farandole
import numpy as np
import pytest
from expect import raises
from launch import launch

RANKS = 3
LIMIT_S = 30


def _until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < limit:
        time.sleep(0.01)
    assert condition()


def _waits_for_a_late_rank():
    """Rank LATE submits the operation once all others have got an error that names it."""
    late, folder = int(os.environ["LATE"]), os.environ["MARKS"]
    farandole.init()
    rank = farandole.rank()
    if rank == late:
        _until(lambda: len(os.listdir(folder)) == RANKS - 1)
        request = farandole.allreduce_async(np.full(4, rank + 1.0), name="late")
    else:
        request = farandole.allreduce_async(np.full(4, rank + 1.0), name="late")
        words = f"^allreduce '.*late' is still in flight on rank {rank} after "
        texts = []

        def names_the_late_rank():
            texts.append(str(raises(farandole.TimeoutError, words, request.wait, 0.02)))
            return f"submitted it, missing: rank {late}" in texts[-1]

        _until(names_the_late_rank)
        open(os.path.join(folder, str(rank)), "w").close()
    assert request.wait(LIMIT_S).tolist() == [6.0] * 4
    farandole.shutdown()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("late", range(RANKS))
def test_a_wait_that_times_out_names_the_missing_rank(late, transport, tmp_path):
    environment = {"FARANDOLE_TRANSPORT": transport, "FARANDOLE_STALL_WARNING_S": "0.2", "MARKS": str(tmp_path),
                   "LATE": str(late)}  # fmt: skip
    launch(RANKS, _waits_for_a_late_rank, environment)
