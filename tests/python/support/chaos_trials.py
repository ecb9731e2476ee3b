"""Runs seeded trials of chaos.py and network_chaos.py, several at a time, and prints those that are wrong and a table.

A trial in which the machine stood still, so that this process did not run either, is repeated: times would be wrong.
"""

import collections
import concurrent.futures
import statistics
import threading
import time

STOOD_STILL_S = 0.5


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
        outcome = run(trial)
        time.sleep(0.1)  # a standstill that has just ended is noticed
        if standstills.last < begin:
            return (*outcome, repeated)
    raise RuntimeError("this machine stands still again and again")


def run_all(trials, run, jobs, prints_each=False):
    """`run(trial)` returns faults, and the seconds until all survivors knew, or None. Returns how many were wrong."""
    times, counts, wrong = collections.defaultdict(list), collections.Counter(), collections.Counter()
    standstills = Standstills()
    standstills.start()
    repeats = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
        begun = {executor.submit(run_undisturbed, run, trial, standstills): trial for trial in trials}
        for done in concurrent.futures.as_completed(begun):
            trial = begun[done]
            faults, seconds, repeated = done.result()
            repeats += repeated
            counts[trial.kind()] += 1
            wrong[trial.kind()] += bool(faults)
            if seconds is not None:
                times[trial.kind()].append(seconds)
            if faults or prints_each:
                outcome = "WRONG" if faults else "right"
                knew = f", all knew after {seconds:.3f} s" if seconds is not None else ""
                print(f"{trial}: {outcome}{knew}", *faults, sep="\n  ", flush=True)
    again = f"; {repeats} were repeated, because the machine stood still" if repeats else ""
    print(f"{len(trials)} trials: {sum(wrong.values())} wrong{again}")
    for kind in sorted(counts):
        spread = f"all knew {describe(times[kind])}" if times[kind] else "survived"
        print(f"  {kind}: {counts[kind]} trials, {wrong[kind]} wrong, {spread}")
    return sum(wrong.values())


def describe(seconds):
    values = sorted(seconds)
    p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
    return f"after {statistics.median(values):.3f} s (median), {p99:.3f} s (p99), {values[-1]:.3f} s (largest)"
