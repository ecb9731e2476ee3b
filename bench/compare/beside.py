"""P12: small allreduces of two ranks beside other work on the same cores, each call timed, beside Open MPI."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys

from launch import CORES, end_marked, launch
from results import Target, print_table, short, size

FULL_SIZES = [4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10]
QUICK_SIZES = [4, 4 << 10, 64 << 10]
OURS, MPI = "farandole", "Open MPI"
FREE = ", not bound"
SPIN = "print(flush=True)\nwhile True: pass"
# PyTorch's DataLoader with one worker, which crops and normalises images, and a step that takes a while.
LOADER = """
import time, torch
torch.set_num_threads(1)

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        image = torch.randint(0, 256, (3, 96, 96), dtype=torch.uint8)
        image = torch.nn.functional.interpolate(image[None].float(), size=128, mode="bilinear")[0, :, 16:112, 16:112]
        return (image - image.mean()) / image.std()

for number, batch in enumerate(torch.utils.data.DataLoader(Images(), batch_size=16, num_workers=1)):
    if number == 0:
        print(flush=True)
    time.sleep(0.02)
"""
QUOTA_CORES = 1.5
GROUP = f"farandole-compare-{os.getpid()}"


class BackgroundLoad:
    """Other processes that run meanwhile, or a quota for the ranks. Each prints a line when it is at work."""

    def __init__(self, name, programs=(), nice=0, quota=False):
        self.name = name
        self.programs = programs
        self.nice = nice
        self.quota = quota

    def __enter__(self):
        self.processes = [
            subprocess.Popen(
                ["nice", "-n", str(self.nice), sys.executable, "-c", program],
                stdout=subprocess.PIPE, preexec_fn=os.setpgrp,
            )
            for program in self.programs
        ]  # fmt: skip
        for process in self.processes:
            if not process.stdout.readline():
                raise RuntimeError(f"the other work ended with {process.wait()} before it began: {self.name}")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)  # a data loader has a worker process
            process.wait()
            process.stdout.close()


ALL = (
    BackgroundLoad("quiet"),
    BackgroundLoad("1 busy process", [SPIN]),
    BackgroundLoad("2 busy processes", [SPIN] * 2),
    BackgroundLoad("1 of low priority", [SPIN], nice=19),
    BackgroundLoad("2 of low priority", [SPIN] * 2, nice=19),
    BackgroundLoad("2 data loaders", [LOADER] * 2),
    BackgroundLoad(f"quota of {QUOTA_CORES} cores", quota=True),
)


def control_group():
    """The folder of a control group of this run and the settings of its quota, by the version that the host has."""
    period_us = 100_000
    quota_us = int(QUOTA_CORES * period_us)
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        return f"/sys/fs/cgroup/{GROUP}", {"cpu.max": f"{quota_us} {period_us}"}
    return f"/sys/fs/cgroup/cpu/{GROUP}", {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us}


def within_quota(command):
    """The command in a control group of its own, or None where none can be made."""
    folder, settings = control_group()
    try:
        os.makedirs(folder, exist_ok=True)
        for name, value in settings.items():
            with open(f"{folder}/{name}", "r+") as file:  # a file that is not there means that this is no control group
                file.write(str(value))
    except OSError:
        return None
    return ["sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec "$@"', "sh", *command]


def remove_control_group():
    with contextlib.suppress(OSError):  # there is none
        os.rmdir(control_group()[0])


class Beside:
    """Medians over launches, by load, library and size: of the median call and of the call at 99 %."""

    ranks = 2
    transport = "shm"

    def __init__(self, programs, quick):
        self.sizes = QUICK_SIZES if quick else FULL_SIZES
        self.rounds = 2 if quick else 5
        how = ["--sizes", ",".join(map(str, self.sizes)), "--seconds", 0.2 if quick else 0.4, "--calls", 1]
        ours = [*how, "--transport", "shm"]
        self.commands = {
            OURS: programs.farandole(2, *ours),
            MPI: programs.openmpi(2, {}, *how),
            OURS + FREE: programs.farandole(2, *ours, "--bound", 0),
            MPI + FREE: programs.openmpi(2, {}, *how, bound=False),
        }
        self.rows = {}
        self.failures = []

    def measure(self, timeout_s):
        for load in ALL:
            with load:
                for _ in range(self.rounds):
                    for name, command in self.commands.items():
                        self._launch(load, name, command, timeout_s)
        end_marked()
        remove_control_group()

    def _launch(self, load, name, command, timeout_s):
        if load.quota:
            command = within_quota(command)
            if command is None:
                if not any(load.name in why for _, why in self.failures):
                    self.failures.append((name, f"{load.name}: no control group can be made here"))
                return
        done = launch(command, timeout_s, {"FARANDOLE_LOG_LEVEL": "error"})
        if done.failure:
            self.failures.append((name, f"{load.name}: {done.failure}"))
        for row in done.rows:
            self.rows.setdefault((load.name, name, row["bytes"]), []).append(row)

    def value(self, load, name, bytes_, what):
        rows = self.rows.get((load, name, bytes_))
        return statistics.median(row[what] for row in rows) if rows else None

    def json_rows(self):
        for (load, name, bytes_), rows in self.rows.items():
            yield {
                "collective": "allreduce", "library": name, "transport": "beside", "algorithm": "auto", "ranks": 2,
                "bytes": bytes_, "dtype": "float32", "load": load,
                "time_us_median": self.value(load, name, bytes_, "median_us"),
                "time_us_p99": self.value(load, name, bytes_, "p99_us"), "launches": len(rows),
            }  # fmt: skip


def check_p12(measured):
    target = Target("P12", f"2 ranks on {CORES} cores beside other work: not slower than Open MPI, median and p99")
    for load in ALL:
        rows = []
        for bytes_ in measured.sizes:
            cells, words = [], []
            for free in ("", FREE):
                for what in ("median_us", "p99_us"):
                    ours = measured.value(load.name, OURS + free, bytes_, what)
                    theirs = measured.value(load.name, MPI + free, bytes_, what)
                    cells += [f"{short(ours)} / {short(theirs)}"]
                    point = f"{load.name}{free}, {size(bytes_)}, {what[:-3]}"
                    words.append(target.check(point, ours / theirs if ours and theirs else None, 1, at_most=True))
            rows.append([size(bytes_), *cells, "NO" if "NO" in words else words[0]])
        print_table(
            f"P12  {load.name}",
            ["bytes", "bound: median", "p99", "not bound: median", "p99", "holds"],
            rows,
            ["microseconds of one call on rank 0, farandole / Open MPI; median of the launches"],
        )
    return target
