"""An inner rank of the agreement tree dies while the loss of another rank spreads: a short form of tree_losses.py."""

import os
import subprocess
import sys

from launch import SUPPORT
from limits import allowed

TRIALS = 6  # each kind of moment twice


def test_an_inner_rank_dies_while_another_loss_spreads():
    ended = subprocess.run(
        [sys.executable, os.path.join(SUPPORT, "tree_losses.py"), "--trials", str(TRIALS)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allowed(600))  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert f"{TRIALS} trials: 0 wrong" in ended.stdout, ended.stdout
