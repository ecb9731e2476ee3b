"""Kills ranks of jobs on this machine, and prints how long it takes until the last rank knows which ones were lost.

    python bench/scale/lose.py [--build build] [--ranks "16 64"] [--victims "relay coordinator host"] [--trials 200]

The ranks are processes over TCP without a launcher, so rank 0 serves the coordinator. All negotiate and sum without a
pause. A trial starts a job, and kills the victims at a random moment of it: `relay` is an inner rank of the agreement
tree (of width 2, so that 16 ranks have a tree), `coordinator` is rank 0, and `host` is eight neighbouring ranks at
once. --seed N begins with that seed.

A trial is right if every other rank returns from its call in time and names one of the victims. A wrong one prints its
seed, and `--trials 1 --seed N` repeats it. A trial in which this machine itself stood still is not counted.
"""

import argparse
import os
import random
import select
import signal
import statistics
import sys
import threading
import time

import ranks

START_S = 120
KNOW_S = 60
RANKS_OF_A_HOST = 8
LONGEST_GAP_S = 0.5


class Gaps:
    """Measures for how long this process does not run, by a thread that wakes often."""

    def __init__(self):
        self.longest_s = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        last = time.monotonic()
        while True:
            time.sleep(0.02)
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - last)
            last = now


class Job:
    def __init__(self, program, size):
        self.read, write = os.pipe()
        self.pending = b""
        self.ranks = ranks.start([program], size, write, transport="tcp", tcp_mesh_ranks=8, agreement_width=2,
                                 start_timeout_s=START_S)  # fmt: skip
        os.close(write)

    def line(self, end):
        """The next line of any rank; empty at the deadline."""
        while b"\n" not in self.pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.read], [], [], left)[0]:
                return ""
            more = os.read(self.read, 1 << 16)
            if not more:
                return ""
            self.pending += more
        line, self.pending = self.pending.split(b"\n", 1)
        return line.decode(errors="replace")

    def close(self):
        ranks.kill(self.ranks)
        os.close(self.read)


def victims_of(kind, size, chance):
    if kind == "coordinator":
        return [0]
    if kind == "relay":  # width 2: rank r has the children 2r + 1 and 2r + 2
        return [chance.randrange(1, (size - 1) // 2)]
    first = RANKS_OF_A_HOST * chance.randrange(1, size // RANKS_OF_A_HOST)
    return list(range(first, first + RANKS_OF_A_HOST))


def run_trial(program, size, kind, seed, gaps):
    """(seconds until the last rank knew, None), or (None, what was wrong)."""
    chance = random.Random(f"{seed} {size} {kind}")
    job = Job(program, size)
    try:
        end = time.monotonic() + START_S
        ready = 0
        while ready < size:
            line = job.line(end)
            if line == "":
                return None, "the job did not start"
            if line != "READY":
                return None, f"before the kill: {line}"
            ready += 1
        time.sleep(chance.random() * 0.3)
        gaps.longest_s = 0
        victims = victims_of(kind, size, chance)
        killed = time.monotonic_ns()
        for victim in victims:
            os.kill(job.ranks[victim].pid, signal.SIGKILL)
        knew = {}
        end = time.monotonic() + KNOW_S
        while len(knew) < size - len(victims):
            line = job.line(end)
            if line == "":
                unaware = sorted(set(range(size)) - set(victims) - set(knew))
                return None, f"HANG: ranks {unaware} do not know after {KNOW_S} s"
            word, *rest = line.split()
            if word != "KNEW":
                return None, f"WRONG: {line}"
            rank, moment, culprit = map(int, rest[:3])
            if rank in victims:  # it knew of another victim before it was killed itself
                continue
            if culprit not in victims:
                return None, f"WRONG NAME: rank {rank} names {culprit} instead of {victims}: {line}"
            knew[rank] = moment
        if gaps.longest_s > LONGEST_GAP_S:
            return None, "PAUSED"
        return (max(knew.values()) - killed) / 1e9, None
    finally:
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", default="16 64")
    parser.add_argument("--victims", default="relay coordinator host")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "bin", "lose_rank")
    if not os.access(program, os.X_OK):
        sys.exit("lose.py: build it with -DFARANDOLE_BENCH=ON --target lose_rank")
    gaps = Gaps()
    failed = False
    columns = "ranks victim trials paused wrong median,s 99%,s most,s".split()
    print("{:>6} {:>12} {:>7} {:>7} {:>6} {:>9} {:>9} {:>9}".format(*columns))
    for size in map(int, arguments.ranks.split()):
        for kind in arguments.victims.split():
            seconds, wrong, paused = [], 0, 0
            for seed in range(arguments.seed, arguments.seed + arguments.trials):
                took, why = run_trial(program, size, kind, seed, gaps)
                if why is None:
                    seconds.append(took)
                elif gaps.longest_s > LONGEST_GAP_S:
                    paused += 1
                    print(
                        f"       seed {seed}: not counted, this machine stood still for {gaps.longest_s:.1f} s: {why}"
                    )
                else:
                    wrong += 1
                    print(f"       seed {seed}, {size} ranks, {kind}: {why}", flush=True)
            failed |= wrong > 0
            times = "-" if not seconds else (
                f"{statistics.median(seconds):9.3f} {sorted(seconds)[int(0.99 * (len(seconds) - 1))]:9.3f} "
                f"{max(seconds):9.3f}")  # fmt: skip
            print(f"{size:6} {kind:>12} {len(seconds):7} {paused:7} {wrong:6} {times}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
