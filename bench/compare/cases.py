"""P6, P8, P9 and P10 measure named cases instead of sizes: networks' gradients, Python, start and end."""

import json
import os
import subprocess

import models
import ordered
from launch import CORES, launch
from results import Cell, Target, print_table, ratio, short, times

STEP, WHOLE = "submitted and waited for", "one allreduce of as much"
OVER_LO = {"GLOO_SOCKET_IFNAME": "lo"}


class Cases:
    """Cells by (launch, case), measured like Ordered: every launch once a round."""

    def __init__(self, ranks, commands):
        self.ranks = ranks
        self.transport = "shm"
        self.commands = commands
        self.cells = {}
        self.failures = []

    def measure(self, rounds, timeout_s):
        for _ in range(rounds):
            for name, (command, variables) in self.commands.items():
                if any(failed == name for failed, _ in self.failures):
                    continue
                done = launch(command, timeout_s, variables)
                for row in done.rows:
                    self.cell(name, row.get("case", row.get("bytes"))).add(row)
                self.cell(name, "launch").add({"samples_us": [done.seconds * 1e6]})
                if done.failure:
                    self.failures.append((name, done.failure))

    def cell(self, name, case):
        return self.cells.setdefault((name, case), Cell())

    def median(self, name, case):
        return self.cells[name, case].median if (name, case) in self.cells else None

    def less(self, name, case, without):
        """The time that a step takes more than the same step without reduction."""
        step, alone = self.median(name, case), self.median(name, without)
        return step - alone if step and alone else None

    def json_rows(self):
        for (name, case), cell in self.cells.items():
            if case != "launch" and cell.median is not None:
                yield {"library": name, "case": case, "ranks": self.ranks, "time_us_median": round(cell.median, 3),
                       "time_us_min": round(cell.least, 3)}  # fmt: skip

    def row(self, words, name, case):
        cell = self.cell(name, case)
        return [words, short(cell.median), short(cell.least)]

    def notes(self, *words):
        return [*words, *[f"{name} failed: {why}" for name, why in self.failures]]


def _list(counts):
    return ",".join(map(str, counts))


def named_and_python(programs, depth, selected):
    """P6 and P8 both need Gloo's figures, so they are measured together."""
    resnet, bert = ["--tensors", _list(models.resnet50())], ["--tensors", _list(models.bert_base())]
    brief, long = ["--seconds", depth.seconds], ["--seconds", 8 * depth.seconds]
    sizes = ["--sizes", _list(depth.sizes), *brief]
    commands = {}
    if "P6" in selected:
        commands |= {
            "named": (programs.named(2, *brief), None),
            "resnet50": (programs.named(2, *long, *resnet), None),
            "resnet50, cold": (programs.named(2, *long, *resnet, "--mode", "cold"), None),
            "resnet50, Open MPI": (programs.openmpi(2, {}, *long, *resnet), None),
            "resnet50, MPICH": (programs.mpich(2, *long, *resnet), None),
            "bert-base": (programs.named(2, *long, *bert), None),
        }
    commands["resnet50, Gloo"] = (programs.torch("gloo", 2, *long, *resnet), OVER_LO)
    if "P8" in selected:
        commands |= {
            "farandole.torch": (programs.python("python_latency.py", 2, *long, *resnet), None),
            "resnet50, backend": (programs.torch("farandole", 2, *long, *resnet), None),
            "backend": (programs.torch("farandole", 2, "--each-call", *sizes), None),
            "Gloo": (programs.torch("gloo", 2, "--each-call", *sizes), OVER_LO),
        }
    measured = Cases(2, commands)
    measured.measure(1 if depth.quick else 3, depth.timeout_s)
    return measured


def check_p6(measured):
    target = Target(
        "P6", "named: 4 B in 3 us; ResNet-50 1.1x, cold 1.2x, BERT-base 1.1x one allreduce; 5x faster than DDP, Gloo"
    )
    rows = []

    def add(row, value="", limit="", holds=""):
        rows.append([*row, value, limit, holds])

    four = measured.median("named", "4 B")
    add(measured.row("4 B, blocking", "named", "4 B"), "", "<= 3 us", target.check("4 B, us", four, 3, at_most=True))
    for name, limit in (("resnet50", 1.1), ("resnet50, cold", 1.2), ("bert-base", 1.1)):
        over = ratio(measured.median(name, STEP), measured.median(name, WHOLE))
        add(measured.row(f"{name}: {STEP}", name, STEP), times(over), f"<= {limit}x",
            target.check(f"{name} over one allreduce", over, limit, at_most=True))  # fmt: skip
        add(measured.row(f"{name}: {WHOLE}", name, WHOLE))
    ours = measured.median("resnet50", STEP)
    for words, name, case in (
        ("resnet50, Open MPI: one by one", "resnet50, Open MPI", "one by one"),
        ("resnet50, MPICH: one by one", "resnet50, MPICH", "one by one"),
        ("resnet50, Gloo: one operation a tensor", "resnet50, Gloo", "one operation a tensor"),
        ("resnet50, Gloo: one operation for all", "resnet50, Gloo", "one operation for all"),
        ("resnet50, DDP over Gloo: whole step", "resnet50, Gloo", "DDP, step"),
    ):
        add(measured.row(words, name, case), times(ratio(measured.median(name, case), ours)))
    cost = measured.less("resnet50, Gloo", "DDP, step", "DDP, step without reduction")
    faster = ratio(cost, ours)
    add(["resnet50, DDP over Gloo: what reducing adds", short(cost), ""], times(faster), ">= 5x",
        target.check("DDP over Gloo / ours", faster, 5))  # fmt: skip
    print_table(
        "P6  named operations, 2 ranks, shared memory",
        ["what is measured", "median", "minimum", "ratio", "target", "holds"],
        rows,
        measured.notes(
            "microseconds; the gradients of ResNet-50 are 161 tensors and 102 MB, BERT-base's 199 and 438 MB",
            "cold: each rank writes 256 MiB of other memory before each step",
        ),
    )
    return target


def check_p8(measured, sizes):
    target = Target(
        "P8", "Python, 4 B: in place 8 us, without gradient 12, torch.distributed 15, p99 5x; others half of Gloo's"
    )
    rows = []
    for words, name, case, limit_us in (
        ("farandole.torch.allreduce_, 4 B", "farandole.torch", "4 B in place", 8),
        ("farandole.torch.allreduce without gradient, 4 B", "farandole.torch", "4 B without gradient", 12),
        ("farandole.allreduce of NumPy, 4 B", "farandole.torch", "4 B of NumPy", None),
        ("all_reduce, 4 B, farandole", "backend", "4 B, each call", 15),
        ("all_reduce, 4 B, Gloo", "Gloo", "4 B, each call", None),
    ):
        median, p99 = measured.median(name, case), measured.cell(name, case).percentile(0.99)
        over = ratio(p99, median)
        limit, word = "", ""
        if limit_us:
            limit = f"<= {limit_us} us, p99 5x"
            held = [target.check(f"{words}, us", median, limit_us, at_most=True),
                    target.check(f"{words}, p99 over median", over, 5, at_most=True)]  # fmt: skip
            word = "NO" if "NO" in held else held[0]
        rows.append([words, short(median), short(p99), times(over), limit, word])
    print_table(
        "P8  Python, each call, 2 ranks (not bound to cores), farandole through shared memory, Gloo over loopback",
        ["what is measured", "median", "p99", "p99 / median", "target", "holds"],
        rows,
        measured.notes("microseconds of one call on rank 0"),
    )
    rows = []
    for bytes_ in sizes:
        label = f"all_reduce of {ordered.size(bytes_)}"
        faster = ratio(measured.median("Gloo", bytes_), measured.median("backend", bytes_))
        rows.append([*measured.row(f"{label}, farandole", "backend", bytes_), times(faster), ">= 2x",
                     target.check(f"{label} over Gloo", faster, 2)])  # fmt: skip
        rows.append([*measured.row(f"{label}, Gloo", "Gloo", bytes_), "", "", ""])
    for words, name, case in (
        ("ResNet-50, farandole.torch: one operation a tensor", "farandole.torch", "one operation a tensor"),
        ("ResNet-50, farandole.torch: DistributedOptimizer", "farandole.torch", "DistributedOptimizer, step"),
        ("ResNet-50, DDP over farandole", "resnet50, backend", "DDP, step"),
        ("ResNet-50, DDP over Gloo", "resnet50, Gloo", "DDP, step"),
        ("ResNet-50, backward without reduction", "resnet50, Gloo", "DDP, step without reduction"),
    ):
        rows.append([*measured.row(words, name, case), "", "", ""])
    print_table(
        "P8  torch.distributed and steps, in batches",
        ["what is measured", "median", "minimum", "Gloo / ours", "target", "holds"],
        rows,
        measured.notes(
            "microseconds; steps are backward passes with the gradients of ResNet-50 and nothing to compute"
        ),
    )
    return target


def start_and_end(programs, depth):
    target = Target("P9", f"init and shutdown: 2 ranks in 50 ms, 32 ranks on {CORES} cores in 2 s")
    rows, runs = [], []
    for ranks, limit_ms in ((2, 50), (32, 2000)):
        measured = Cases(ranks, {
            "farandole": (programs.farandole(ranks, "--mode", "start"), None),
            "Open MPI": (programs.openmpi(ranks, {}, "--mode", "start"), None),
            "MPICH": (programs.mpich(ranks, "--mode", "start"), None),
        })  # fmt: skip
        measured.measure(3 if depth.quick or ranks > 2 else 10, depth.timeout_s)
        ours = measured.median("farandole", "init and shutdown")
        word = target.check(f"{ranks} ranks, ms", ours and ours / 1e3, limit_ms, at_most=True)
        rows.append(
            [
                *measured.row(f"{ranks} ranks: farandole, worlds made and ended", "farandole", "init and shutdown"),
                f"<= {limit_ms} ms",
                word,
            ]
        )
        for peer in ("Open MPI", "MPICH"):
            rows.append([*measured.row(f"{ranks} ranks: {peer}, MPI_Init alone", peer, "init"), "", ""])
        for name in measured.commands:
            rows.append([*measured.row(f"{ranks} ranks: {name}, the whole command", name, "launch"), "", ""])
        for name, why in measured.failures:
            rows.append([f"{ranks} ranks: {name} failed: {why}", "", "", "", ""])
        runs.append(measured)
    print_table("P9  start and end", ["what is measured", "median us", "minimum us", "target", "holds"], rows)
    return target, runs


# ---- Kernels ---------------------------------------------------------------------------------------------------------

SMALL = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")


def kernels(programs, depth):
    """Bytes read and written a second by one core, arrays of 64 MiB, beside the limit of memory for such a loop."""
    target = Target(
        "P10", "sums on one core, as a share of the memory limit: 0.9 for float32, float64, integers; 0.5 for smaller"
    )
    bench = [
        f"{programs.library}/bin/reduce_bench",
        "--benchmark_filter=^(memcpy|sum/[a-z0-9_]+)/64MiB$",
        "--benchmark_format=json",
        f"--benchmark_min_time={depth.seconds}",
        "--benchmark_repetitions=3",
    ]
    core = min(os.sched_getaffinity(0))
    try:
        output = subprocess.run(
            ["taskset", "-c", str(core), *bench], capture_output=True, text=True, timeout=100, check=True
        )
        runs = json.loads(output.stdout)["benchmarks"]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"\nP10  could not be measured: {error}\n")
        target.check("all", None, 0)
        return target, []
    rates, triads = {}, []
    for run in runs:
        triads.append(run.get("bound_GBps", 0))
        if run["run_type"] == "iteration":
            rates.setdefault(run["run_name"].split("/")[-2], []).append(run["bytes_per_second"] / 1e9)
    plain = Cases(1, {"loop": (programs.limits(1, "--mode", "sum", "--sizes", 64 << 20, "--seconds", 0.3), None)})
    plain.measure(2, 30)
    loop_us = plain.median("loop", 64 << 20)
    rates["a plain loop"] = [1.5 * (64 << 20) / loop_us / 1e3] if loop_us else []
    rates["a triad, the faster of two"] = [max(triads)]
    _print_kernels(target, rates)
    rows = [{"case": f"sum of {name}", "bytes": 64 << 20, "GBps_median": round(sorted(rate)[len(rate) // 2], 3)}
            for name, rate in rates.items() if rate]  # fmt: skip
    return target, rows


def _print_kernels(target, rates):
    middle = {name: sorted(rate)[len(rate) // 2] for name, rate in rates.items() if rate}
    limits = ("memcpy", "a plain loop", "a triad, the faster of two")
    bound = max(middle.get(name, 0) for name in limits[1:])
    rows = []
    for name, rate in middle.items():
        of = [f"{rate / one:.2f}" if one else "" for one in (middle.get("memcpy", 0), bound)]
        row = [name, f"{rate:.1f}", f"{max(rates[name]):.1f}", *of]
        if name in limits or name == "bool":
            rows.append([*row, "", ""])
            continue
        limit = 0.5 if name in SMALL else 0.9
        rows.append([*row, f">= {limit}", target.check(name, rate / bound if bound else None, limit)])
    print_table(
        "P10  reduction kernels on one core: sums of two arrays of 64 MiB",
        ["elements", "GB/s median", "GB/s best", "of memcpy", "of the bound", "target", "holds"],
        rows,
        [
            "bytes read and written; the bound is what memory allows a loop that reads two arrays and writes a third:",
            "the fastest of a plain loop, as the compiler makes it, and a = b + c with ordinary and streaming stores;",
            "memcpy, which reads one array for each that it writes, is not a bound of a sum, and is shown beside it",
        ],
    )
