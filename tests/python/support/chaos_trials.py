"""Runs seeded trials of chaos.py and network_chaos.py, several at a time, and prints those that are wrong and a table.

A trial in which the machine stood still, so that this process did not run either, is repeated: times would be wrong.
"""

import argparse
import collections
import concurrent.futures
import statistics
import threading
import time
import traceback

STOOD_STILL_S = 1.5


def parser_of(description, program, may_print_each=True):
    """The options that all kinds of trials have; --each only where not every trial is printed anyway."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="of the first trial; the others follow")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time; most of them wait")
    if may_print_each:
        parser.add_argument("--each", action="store_true", help="prints a line for each trial, not only for wrong ones")
    parser.add_argument("--program", default=program)
    return parser


class Standstills(threading.Thread):
    """Notices when this process did not run, for example because its virtual machine or control group was frozen."""

    def __init__(self):
        super().__init__(daemon=True)
        self.last = float("-inf")  # the end of the last one

    def run(self):
        before = time.monotonic()
        while True:
            time.sleep(0.05)
            now = time.monotonic()
            if now - before > STOOD_STILL_S:
                self.last = now
            before = now


def run_undisturbed(run, trial, standstills):
    """Returns what run() returns, and how often it was repeated because of standstills."""
    for repeated in range(1000):
        begin = time.monotonic()
        try:
            outcome = run(trial)
        except Exception:  # of the driver; the other trials go on
            outcome = [traceback.format_exc()], None
        time.sleep(0.1)  # a standstill that has just ended is noticed
        if standstills.last < begin:
            return (*outcome, repeated)
    raise RuntimeError("this machine stands still again and again")


def run_all(trials, run, jobs, prints_each=False, says="all knew"):
    """`run(trial)` returns faults, and the seconds until what `says` names, or None. Returns how many were wrong.

    An interrupt ends it after the trials that have begun.
    """
    table = Table(says)
    standstills = Standstills()
    standstills.start()
    with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
        begun = {executor.submit(run_undisturbed, run, trial, standstills): trial for trial in trials}
        left = set(begun)
        while left:
            try:
                done = next(concurrent.futures.as_completed(left))
            except KeyboardInterrupt:
                left = {one for one in left if not one.cancel()}
                continue
            left.remove(done)
            table.add(begun[done], *done.result(), prints_each)
    return table.print()


class Table:
    def __init__(self, says):
        self.says = says
        self.times, self.counts, self.wrong = (
            collections.defaultdict(list),
            collections.Counter(),
            collections.Counter(),
        )
        self.repeats = 0

    def add(self, trial, faults, seconds, repeated, prints_it):
        self.repeats += repeated
        self.counts[trial.kind()] += 1
        self.wrong[trial.kind()] += bool(faults)
        if seconds is not None:
            self.times[trial.kind()].append(seconds)
        if faults or prints_it:
            outcome = "WRONG" if faults else "right"
            knew = f", {self.says} after {seconds:.3f} s" if seconds is not None else ""
            print(f"{trial}: {outcome}{knew}", *faults, sep="\n  ", flush=True)

    def print(self):
        """Returns how many trials were wrong."""
        wrong = sum(self.wrong.values())
        again = f"; {self.repeats} were repeated, because the machine stood still" if self.repeats else ""
        print(f"{sum(self.counts.values())} trials: {wrong} wrong{again}")
        for kind in sorted(self.counts):
            spread = f"{self.says} {describe(self.times[kind])}" if self.times[kind] else "no rank reported a loss"
            print(f"  {kind}: {self.counts[kind]} trials, {self.wrong[kind]} wrong, {spread}")
        return wrong


def describe(seconds):
    values = sorted(seconds)
    p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
    return f"after {statistics.median(values):.3f} s (median), {p99:.3f} s (p99), {values[-1]:.3f} s (largest)"
