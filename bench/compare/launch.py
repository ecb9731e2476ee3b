"""Starts the ranks of each library, collects what they print, and kills all processes that are left behind."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
import uuid

# Every process that descends from this run inherits this variable; end_marked() finds and kills processes by it.
MARK = "FARANDOLE_COMPARE_RUN"
MARKED = f"{MARK}={os.getpid()}-{uuid.uuid4().hex[:8]}"
CORES = len(os.sched_getaffinity(0))


class Programs:
    """The command lines of the programs that run.sh has built."""

    def __init__(self, built, library):
        self.built = built
        self.library = library
        self.here = os.path.dirname(os.path.abspath(__file__))

    def farandole(self, ranks, *arguments):
        return [f"{self.built}/farandole_allreduce", "--ranks", ranks, *arguments]

    def named(self, ranks, *arguments):
        return [f"{self.built}/farandole_named", "--ranks", ranks, *arguments]

    def limits(self, ranks, *arguments):
        return [f"{self.built}/limits", "--ranks", ranks, *arguments]

    def openmpi(self, ranks, parameters, *arguments, bound=True):
        """As its manual recommends: bound to cores if each rank can have one; else --oversubscribe, which
        makes it yield."""
        place = (
            ["--bind-to", "core" if bound else "none"] if ranks <= CORES else ["--bind-to", "none", "--oversubscribe"]
        )
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        set_to = [word for name, value in parameters.items() for word in ("--mca", name, value)]
        program = f"{self.built}/openmpi_allreduce"
        return ["mpirun.openmpi", *root, *place, *set_to, "-n", ranks, program, *arguments]

    def mpich(self, ranks, *arguments):
        place = ["-bind-to", "core"] if ranks <= CORES else []
        return ["mpirun.mpich", *place, "-n", ranks, f"{self.built}/mpich_allreduce", *arguments]

    def python(self, script, ranks, *arguments):
        return [sys.executable, f"{self.here}/{script}", "--ranks", ranks, *arguments]

    def torch(self, backend, ranks, *arguments):
        return self.python("torch_allreduce.py", ranks, "--backend", backend, *arguments)


class Launch:
    """What one launch printed: JSON objects, or a short reason for its failure."""

    def __init__(self, rows, failure, seconds):
        self.rows = rows
        self.failure = failure
        self.seconds = seconds


def launch(command, timeout_s, variables=None):
    """Runs a command to its end, or kills it with all its processes after the timeout."""
    environment = dict(os.environ, **{MARK: MARKED.split("=")[1]}, **(variables or {}))
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
        failure = None if process.returncode == 0 else _last_line(errors) or f"exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.terminate()  # a launcher ends its ranks
        end_marked(after_s=1)
        output, errors = process.communicate()
        failure = f"stopped after {timeout_s:.0f} s"
    seconds = time.monotonic() - begin
    end_marked(after_s=1)
    return Launch([json.loads(line) for line in output.splitlines() if line.startswith("{")], failure, seconds)


def _last_line(errors):
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith(("-", "*", "="))]
    return lines[-1][:160] if lines else ""


def marked():
    """The processes of this run except this one."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if MARKED.encode() in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            pass
    return found


def end_marked(after_s=0):
    """Waits up to `after_s` for the remaining processes of this run to end, then kills them."""
    deadline = time.monotonic() + after_s
    while marked() and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in marked():
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def end_all_at_exit():
    atexit.register(end_marked)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
