"""Limits of time that only a fault should reach."""

import os


def allowed(seconds):
    """Returns the limit, in seconds on this machine now, for what takes less than `seconds` where no core is shared.

    A test that takes long because many processes share the cores has not failed, so the limit is multiplied by the
    number of processes for each core, up to ten times.
    """
    per_core = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return seconds * min(max(per_core, 1), 10)
