"""stop() stops a process for the tests of silent ranks."""

import os
import signal
import time
from pathlib import Path

from limits import allowed


def stop(pid):
    """Stops a process and all its threads, each of which stops when it is scheduled: late on a busy machine."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + allowed(20)
    while any(_state_of(task) != "T" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < end, f"process {pid} has not stopped"
        time.sleep(0.001)


def _state_of(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
