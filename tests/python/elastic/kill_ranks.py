"""Kills one rank after another in one elastic job, and watches the launcher.

    python tests/python/elastic/kill_ranks.py --kills 100

Each kill waits until the job is complete again and has made steps. Prints how long the survivors needed, and the open
descriptors and resident memory of the launcher. Fails if a total is wrong, or if either of the latter grows.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

from launch import FARANDOLE  # noqa: E402
from limits import allowed  # noqa: E402

STEPS = 3  # between two kills


class Job:
    """An elastic job of `ranks` ranks that count steps until the folder has a file `stop`."""

    def __init__(self, ranks, folder):
        self.ranks, self.folder = ranks, folder
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))
        }
        command = [FARANDOLE, "run", "-np", str(ranks), "--min-np", str(ranks - 1), "--", sys.executable,
                   os.path.join(HERE, "elastic_tasks.py"), "spreads", folder]  # fmt: skip
        self.process = subprocess.Popen(command, env=dict(variables, OMP_NUM_THREADS="1"), text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        self.lines = []
        self.said = []  # (time of arrival, facts)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("[") and "SAYS " in line:  # and not a last line of a killed rank, which is repeated
                self.said.append((time.monotonic(), json.loads(line.split("SAYS ")[1])))

    def wait(self, what, seconds=60):
        """The first true value of `what()`. Fails after `seconds`, or if the job has ended."""
        end = time.monotonic() + allowed(seconds)
        while time.monotonic() < end and self.process.poll() is None:
            found = what()
            if found:
                return found
            time.sleep(0.002)
        raise AssertionError(f"nothing came in {seconds} s\n" + "".join(self.lines[-60:]))

    def complete(self, begin):
        """The processes of all ranks, by rank, if since line `begin` all have entered one world and have made steps."""
        said = [facts for _, facts in self.said[begin:]]
        entered = {one["rank"]: one["pid"] for one in said if "enters" in one and one["size"] == self.ranks}
        steps = sum(1 for one in said if "step" in one and one["size"] == self.ranks)
        return entered if len(entered) == self.ranks and steps >= STEPS else None

    def launcher(self):
        """Open descriptors and resident bytes of the launcher."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            pages = int(file.read().split()[1])
        return len(os.listdir(f"/proc/{self.process.pid}/fd")), pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        with open(os.path.join(self.folder, "stop"), "w"):
            pass
        code = self.process.wait(allowed(60))
        self.reader.join()
        return code

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


def recovered(job, begin):
    """When each of the other ranks had entered a world after line `begin`."""
    times = [moment for moment, facts in job.said[begin:] if "enters" in facts and facts["size"] < job.ranks]
    return times if len(times) >= job.ranks - 1 else None


def kill_ranks(kills, ranks=3, seed=0, say=print):
    """Kills `kills` ranks. AssertionError if a total is wrong, a recovery hangs, or the launcher grows."""
    dice = random.Random(seed)
    seconds, launcher = [], []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(ranks, folder)
        try:
            begin = 0
            for kill in range(kills):
                processes = job.wait(lambda begin=begin: job.complete(begin))
                launcher.append(job.launcher())
                begin = len(job.said)
                moment = time.monotonic()
                victim = dice.randrange(ranks)
                assert os.path.exists(f"/proc/{processes[victim]}"), "".join(job.lines[-60:])
                os.kill(processes[victim], signal.SIGKILL)
                seconds.append(max(job.wait(lambda begin=begin: recovered(job, begin))) - moment)
                if (kill + 1) % 10 == 0:
                    descriptors, resident = launcher[-1]
                    say(f"{kill + 1} kills: p50 {statistics.median(seconds):.3f} s, max {max(seconds):.3f} s; "
                        f"launcher: {descriptors} descriptors, {resident / 2**20:.2f} MiB")  # fmt: skip
            job.wait(lambda: job.complete(begin))
            launcher.append(job.launcher())
            assert job.stop() == 0, "".join(job.lines[-60:])
        finally:
            job.end()
    totals = [facts for _, facts in job.said if "total" in facts]
    assert len(totals) == ranks, totals
    assert all(one["total"] == one["expected"] > 0 for one in totals), totals
    say(f"{kills} kills, {totals[0]['steps']} steps: all totals are {totals[0]['total']}, as expected")
    half = len(launcher) // 2
    assert max(fds for fds, _ in launcher[half:]) <= max(fds for fds, _ in launcher[: half + 1]), launcher
    return launcher


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    launcher = kill_ranks(given.kills, given.ranks, given.seed)
    first, last = launcher[min(10, len(launcher) // 2)][1], launcher[-1][1]
    print(f"memory of the launcher: {first / 2**20:.2f} MiB after the first kills, {last / 2**20:.2f} MiB at the end")
    if last > first + 2**20:
        sys.exit("the launcher's memory grows")


if __name__ == "__main__":
    main()
