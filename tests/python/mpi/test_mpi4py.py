"""Some of mpi4py's own tests with and without the preload library; `bash tests/mpi4py.sh` runs all of them."""

import os
import subprocess
import sys

from launch import ROOT
from limits import allowed


def test_outcomes_of_mpi4pys_own_tests_are_the_same_with_and_without():
    ended = subprocess.run(
        ["bash", os.path.join(ROOT, "tests", "mpi4py.sh"), "--quick"],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=allowed(500),
    )
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("0 modules differ") == 2, ended.stdout
