"""A short form of `tests/chaos.sh --network`: seeded jobs on several hosts, and a fault of the network in each."""

import os
import subprocess
import sys

from launch import FARANDOLE, SUPPORT
from limits import allowed

# They cover each phase, both sides of each kind of fault but delays, all kinds of protection, and libfabric.
SEEDS = (3, 5, 7, 9, 13, 14, 21, 24, 26, 44, 78, 111, 192, 453)


def test_outages_are_survived_or_end_with_a_rank_of_the_other_side():
    # Most trials wait, so several run at a time.
    ended = subprocess.run(
        [sys.executable, os.path.join(SUPPORT, "network_chaos.py"), "--program", FARANDOLE, "--jobs", "4",
         "--seeds", ",".join(map(str, SEEDS))],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allowed(300))  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert f"{len(SEEDS)} trials: 0 wrong" in ended.stdout, ended.stdout
