"""A barrier that names missing ranks. It uses the store, so that a rank that hangs does not affect the group."""

import time
from datetime import timedelta

from ... import errors
from .work import as_torch

_ANSWER_S = 5.0  # the time after rank 0's timeout in which the others wait for its answer


def monitored_barrier(store, rank, size, timeout, wait_all_ranks, number):
    """Blocks until all ranks have arrived. TimeoutError, with the missing ranks, on all ranks that have."""
    prefix = f"farandole/barrier/{number}"
    missing_key = f"{prefix}/missing"
    if rank == 0:
        missing = _missing(store, prefix, size, timeout, wait_all_ranks)
        store.set(missing_key, ",".join(map(str, missing)))
    else:
        store.set(f"{prefix}/{rank}", "")
        try:
            store.wait([missing_key], timeout + timedelta(seconds=_ANSWER_S))
        except RuntimeError:
            missing = [0]
        else:
            missing = [int(one) for one in store.get(missing_key).decode().split(",") if one]
    if missing:
        raise as_torch(_error(missing, timeout))


def _missing(store, prefix, size, timeout, wait_all_ranks):
    end = time.monotonic() + timeout.total_seconds()
    missing = []
    for rank in range(1, size):
        left = max(end - time.monotonic(), 0.001)
        try:
            store.wait([f"{prefix}/{rank}"], timedelta(seconds=left))
        except RuntimeError:
            missing.append(rank)
            if not wait_all_ranks:
                break
    return missing


def _error(missing, timeout):
    ranks = "rank " + str(missing[0]) if len(missing) == 1 else "ranks " + ", ".join(map(str, missing))
    text = f"monitored_barrier: {ranks} did not arrive within {timeout.total_seconds():g} s; see the logs there"
    return errors.TimeoutError(text, culprit_rank=missing[0], operation="monitored_barrier")
