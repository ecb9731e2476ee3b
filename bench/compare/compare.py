"""Measures farandole, its peers and the machine's limits, and reports which targets hold. run.sh starts it."""

import argparse
import json
import os
import subprocess
import sys
import time

import beside
import cases
import ordered
from launch import CORES, Programs, end_all_at_exit
from results import Target, print_table

TARGETS = ("P1", "P2", "P3", "P4", "P6", "P8", "P9", "P10", "P12")


class Depth:
    """The number of launches of each library, and the seconds for each size in each launch."""

    def __init__(self, quick):
        self.quick = quick
        self.rounds = 2 if quick else 5
        self.crowded_rounds = 1 if quick else 3
        self.seconds = 0.06 if quick else 0.12
        self.sizes = ordered.QUICK_SIZES if quick else ordered.FULL_SIZES
        self.crowded_sizes = ordered.QUICK_SIZES[:-1] if quick else ordered.FULL_SIZES
        self.timeout_s = 30 if quick else 60


def measure_shared_memory(programs, depth, selected, results):
    if not {"P1", "P2"} & selected:
        return
    measured = ordered.shared_memory(programs, 2, depth.sizes, depth.seconds)
    measured.measure(depth.rounds, depth.timeout_s)
    results.runs.append(measured)
    if "P1" in selected:
        results.targets.append(ordered.check_p1(measured))
    if "P2" in selected:
        results.targets.append(ordered.check_p2(measured))


def measure_crowded(programs, depth, selected, results):
    if "P3" not in selected:
        return
    target = Target("P3", f"4 and 8 ranks on {CORES} cores: faster than Open MPI at every size, no burned time slices")
    for ranks in (4, 8):
        measured = ordered.shared_memory(programs, ranks, depth.crowded_sizes, depth.seconds)
        measured.measure(depth.crowded_rounds, depth.timeout_s)
        results.runs.append(measured)
        ordered.check_p3(target, measured)
    results.targets.append(target)


def measure_tcp(programs, depth, selected, results):
    if "P4" not in selected:
        return
    target = Target("P4", "loopback TCP, 2 and 4 ranks: faster than Open MPI and Gloo; 0.8 of bare sockets from 1 MiB")
    for ranks in (2, 4):
        crowded = ranks > CORES
        sizes = depth.crowded_sizes if crowded else depth.sizes
        measured = ordered.loopback_tcp(programs, ranks, sizes, depth.seconds)
        measured.measure(depth.crowded_rounds if crowded else depth.rounds, depth.timeout_s)
        results.runs.append(measured)
        ordered.check_p4(target, measured)
    results.targets.append(target)


def measure_named_and_python(programs, depth, selected, results):
    if not {"P6", "P8"} & selected:
        return
    measured = cases.named_and_python(programs, depth, selected)
    results.runs.append(measured)
    if "P6" in selected:
        results.targets.append(cases.check_p6(measured))
    if "P8" in selected:
        results.targets.append(cases.check_p8(measured, depth.sizes))


def measure_start(programs, depth, selected, results):
    if "P9" in selected:
        target, runs = cases.start_and_end(programs, depth)
        results.targets.append(target)
        results.runs += runs


def measure_kernels(programs, depth, selected, results):
    if "P10" in selected:
        target, rows = cases.kernels(programs, depth)
        results.targets.append(target)
        results.rows += rows


def measure_beside_other_work(programs, depth, selected, results):
    if "P12" in selected:
        measured = beside.Beside(programs, depth.quick)
        measured.measure(depth.timeout_s)
        results.runs.append(measured)
        results.targets.append(beside.check_p12(measured))


class Results:
    def __init__(self):
        self.runs = []
        self.rows = []
        self.targets = []

    def write(self, path):
        with open(path, "w") as file:
            for row in [*(row for run in self.runs for row in run.json_rows()), *self.rows]:
                file.write(json.dumps({**row, "cores": CORES}) + "\n")

    def print_summary(self):
        lost = [len(target.missed) + len(target.unknown) for target in self.targets]
        rows = [
            [t.name, t.word, f"{t.checked - missed} of {t.checked}", t.promise] for t, missed in zip(self.targets, lost)
        ]
        print_table("Targets", ["target", "holds", "points", "what"], rows)
        for target in self.targets:
            for miss in target.missed:
                print(f"  {target.name} misses at {miss}")
            for what in target.unknown:
                print(f"  {target.name} could not be measured at {what}")
        failures = [(m, name, why) for m in self.runs for name, why in m.failures]
        for measured, name, why in failures:
            print(f"  {name} over {measured.transport} with {measured.ranks} ranks: {why}")
        return not failures


def draw(json_file, folder, python):
    os.makedirs(folder, exist_ok=True)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures.py")
    if not python or subprocess.run([python, script, json_file, folder], check=False).returncode != 0:
        print("  no pictures: Matplotlib could not be installed or failed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--built", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--from", dest="called_from", default=".")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--pictures")
    parser.add_argument("--plotter", help="a Python that has Matplotlib")
    parser.add_argument("--only", default=",".join(TARGETS), type=lambda text: text.upper())
    options = parser.parse_args()
    selected = set(options.only.split(","))
    if not selected <= set(TARGETS):
        parser.error(f"--only {options.only}: the targets are {', '.join(TARGETS)}")
    end_all_at_exit()
    programs, depth, results = Programs(options.built, options.library), Depth(options.quick), Results()
    begin = time.monotonic()
    parts = (
        measure_shared_memory,
        measure_crowded,
        measure_tcp,
        measure_named_and_python,
        measure_start,
        measure_kernels,
        measure_beside_other_work,
    )
    for measure in parts:
        measure(programs, depth, selected, results)
    good = results.print_summary()
    json_file = os.path.join(options.called_from, options.json or f"{os.path.abspath(options.built)}/results.json")
    pictures = os.path.join(options.called_from, options.pictures or os.path.abspath(options.built))
    results.write(json_file)
    print(f"  every cell: {json_file}")
    if any(isinstance(run, ordered.Ordered) for run in results.runs):
        draw(json_file, pictures, options.plotter)
    print(f"  measured in {time.monotonic() - begin:.0f} s")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
