"""Seeded trials: a job of three processes, and one process that is killed, stopped or ends at a random moment.

    python tests/python/support/chaos.py --trials 1000 --seed 1

A trial is right if all survivors end in time, each sum is exact, no healthy rank is named, all survivors report one
text, and no process and no shared memory is left. An elastic job first loses another rank, meets the fault while it
resets, and must then go on. A wrong trial prints its seed, and `--trials 1 --seed N` repeats it. The seed determines
what happens; how the scheduler interleaves the processes differs each time.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time

import chaos_trials

RANKS = 3
HERE = os.path.dirname(os.path.abspath(__file__))
LOST_AFTER_S = 3
START_TIMEOUT_S = 6
DEADLINE_S = 60
PHASES = ("start", "groups", "ordered", "named", "locked", "shutdown")
# "exit": the process calls exit. "pause": it is stopped for a second, and nothing may be lost.
HOWS = ("KILL", "STOP", "SEGV", "exit", "pause")
ELASTIC_HOWS = ("KILL", "STOP", "SEGV", "pause")
LAUNCHER_HOWS = ("KILL", "STOP", "pause")
LAUNCHER = -1  # as a victim
# What an ordered call adds to a failure. Others may wait in an operation by name, or be ready with a communicator that
# is being made, and begin the next one.
ORDERED_CALL = re.compile(r", while connecting all comm \d+$|; this communicator has ended.*$")


@dataclasses.dataclass(frozen=True)
class Trial:
    seed: int
    launcher: str  # "run": farandole run; "none": rank 0 serves the coordinator, as under torchrun
    transport: str
    phase: str
    how: str
    victim: int
    delay_s: float  # from the moment when all ranks are in the phase
    connects_at_first_use: bool  # over TCP

    @staticmethod
    def of(seed):
        chance = random.Random(seed)
        launcher = chance.choice(("run", "none"))
        how = chance.choice(HOWS)
        victims = list(range(RANKS)) + ([LAUNCHER] if launcher == "run" and how in LAUNCHER_HOWS else [])
        trial = Trial(seed, launcher, chance.choice(("shm", "tcp")), chance.choice(PHASES), how, chance.choice(victims),
                      chance.random() * 0.3, False)  # fmt: skip
        if launcher == "run" and how in ELASTIC_HOWS and chance.random() < 0.25:
            trial = dataclasses.replace(trial, phase="elastic")
        return dataclasses.replace(trial, connects_at_first_use=chance.random() < 0.5)

    def ends_launcher(self):
        return self.victim == LAUNCHER and self.how in ("KILL", "STOP")

    def kind(self):
        victim = "launcher" if self.victim == LAUNCHER else "rank 0" if self.victim == 0 else "rank"
        return f"{self.how} of {victim}" + (" in an elastic reset" if self.phase == "elastic" else "")


# ---- A rank ----------------------------------------------------------------------------------------------------------


def _say(*fields):
    # One write for each line, because the ranks share a file or a pipe.
    os.write(1, ("\t".join(map(str, fields)) + "\n").encode())


def _exact(values, expected):
    if not (values == expected).all():
        _say("WRONG", values[:4], expected)
        os._exit(9)


def _step_of(phase):
    """Returns a function that runs one step. Its argument counts the steps."""
    import farandole
    import numpy

    ranks = farandole.size()

    def groups(turn):
        with farandole.Communicator() as comm:
            _exact(comm.allreduce(numpy.full(10, turn)), turn * ranks)

    def named(turn):
        _exact(farandole.allreduce(numpy.full(1000, turn), name=f"values {turn}", op=farandole.Op.SUM), turn * ranks)

    def locked(turn):
        names = ("a", "b", "c")
        handles = [farandole.allreduce_async(numpy.full(1000, turn), name=name, op=farandole.Op.SUM) for name in names]
        for handle in handles:
            _exact(handle.wait(), turn * ranks)

    if phase == "groups":
        return groups
    if phase == "named":
        return named
    if phase == "locked":
        return locked
    comm = farandole.Communicator()
    return lambda turn: _exact(comm.allreduce(numpy.full(50_000, turn)), turn * ranks)


def run_rank(phase):
    import farandole
    import numpy

    me = os.environ["FARANDOLE_RANK"]
    every = int(os.environ.get("CHAOS_STEPS", 10))  # between two looks whether the job is over
    exits_after_s = os.environ.get("CHAOS_EXIT_AFTER_S") if os.environ["CHAOS_VICTIM"] == me else None

    def leave():
        _say("EXITS", me, time.monotonic())
        os._exit(3)

    def is_in_phase():
        _say("READY", me, os.getpid())
        if exits_after_s:
            threading.Timer(float(exits_after_s), leave).start()

    try:
        if phase == "start":
            is_in_phase()
        farandole.init()
        step = _step_of(phase)
        for turn in range(10_000_000):
            step(turn)
            if turn == 2 * every and phase != "start":
                is_in_phase()
            over = os.path.exists(os.environ["CHAOS_END"]) or (phase == "shutdown" and turn == 4 * every)
            if turn % every == 0 and farandole.allreduce(numpy.array([over]), name="over", op=farandole.Op.MAX)[0]:
                break
        farandole.shutdown()
        _say("DONE", me)
    except farandole.Error as error:
        _say("FAILED", me, time.monotonic(), error.code, error.culprit_rank, error.text)
        os._exit(1)


# ---- A job -----------------------------------------------------------------------------------------------------------


def variables_without_settings():
    return {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Job:
    start_timeout_s = START_TIMEOUT_S

    def __init__(self, trial, folder, program):
        self.trial, self.folder = trial, folder
        self.mark = f"farandole-chaos-{secrets.token_hex(8)}"
        self.end_file = os.path.join(folder, "end")
        self.signalled = None
        command = [sys.executable, os.path.abspath(__file__), "--rank", trial.phase, "--mark", self.mark]
        variables = {**variables_without_settings(), "FARANDOLE_TRANSPORT": trial.transport,
                     "FARANDOLE_LOST_AFTER_S": str(LOST_AFTER_S), "CHAOS_VICTIM": str(trial.victim),
                     "FARANDOLE_START_TIMEOUT_S": str(self.start_timeout_s), "CHAOS_END": self.end_file,
                     "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # fmt: skip
        if trial.connects_at_first_use:
            variables["FARANDOLE_TCP_MESH_RANKS"] = "1"
        if trial.how == "exit":
            variables["CHAOS_EXIT_AFTER_S"] = str(trial.delay_s)
        self.processes = []
        self.start_all(program, command, variables)

    def start_all(self, program, command, variables):
        trial, folder = self.trial, self.folder
        if trial.launcher == "run":
            self._start([program, "run", "-np", str(RANKS), "--no-prefix", "--", *command], variables)
            return
        variables.update(FARANDOLE_RENDEZVOUS=f"file://{folder}/rendezvous", FARANDOLE_JOB_KEY=secrets.token_hex(16),
                         FARANDOLE_SIZE=str(RANKS))  # fmt: skip
        for rank in range(RANKS):
            self._start(command, {**variables, "FARANDOLE_RANK": str(rank)})

    def _start(self, command, variables):
        number = len(self.processes)
        with open(os.path.join(self.folder, f"{number}.out"), "w") as output:
            self.processes.append(subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT,
                                                   stdin=subprocess.DEVNULL, start_new_session=True))  # fmt: skip

    def output(self):
        text = ""
        for number in range(len(self.processes)):
            with open(os.path.join(self.folder, f"{number}.out"), errors="replace") as file:
                text += file.read()
        return text

    def lines(self, word):
        """{rank: the fields after it}"""
        found = {}
        for line in self.output().splitlines():
            fields = line.split("\t")
            if fields[0] == word:
                found[int(fields[1])] = fields[2:]
        return found

    def processes_left(self, begin=""):
        listed = subprocess.run(["pgrep", "-f", begin + self.mark], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in listed]

    def ranks_left(self):
        return self.processes_left(f"^{re.escape(sys.executable)} .*")

    def strike(self):
        """Waits until the victim is in its phase, and does what the trial says."""
        trial = self.trial
        needed = {trial.victim} if trial.phase == "start" and trial.victim != LAUNCHER else set(range(RANKS))
        end = time.monotonic() + DEADLINE_S
        while not needed <= set(self.lines("READY")):
            if time.monotonic() > end:
                return f"ranks are not in the phase after {DEADLINE_S} s"
            time.sleep(0.005)
        ready = self.lines("READY")
        self.strike_process(self.processes[0].pid if trial.victim == LAUNCHER else int(ready[trial.victim][0]))
        if trial.how == "pause":
            open(self.end_file, "w").close()
        return None

    def strike_process(self, victim):
        trial = self.trial
        time.sleep(trial.delay_s)
        self.signalled = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # it may have ended in the phase "shutdown"
            if trial.how == "pause":
                os.kill(victim, signal.SIGSTOP)
                time.sleep(1)
                os.kill(victim, signal.SIGCONT)
            elif trial.how != "exit":
                os.kill(victim, getattr(signal, f"SIG{trial.how}"))

    def wait_for_survivors(self):
        """Returns the ranks that have not ended in time."""
        trial = self.trial
        if trial.ends_launcher() and trial.how == "STOP":
            return self.wait_without_launcher()
        ranks = set(range(RANKS)) - ({trial.victim} if trial.how != "pause" else set())
        end = time.monotonic() + DEADLINE_S
        while True:
            if trial.victim == LAUNCHER and trial.how == "KILL":
                late = self.processes_left()
            else:
                late = sorted(ranks - set(self.lines("FAILED")) - set(self.lines("DONE")))
                # The launcher ends ranks that wait for one that never arrives. In other phases faults_of() finds them.
                if trial.launcher == "run" and self.processes[0].poll() is not None:
                    late = []
            if not late or time.monotonic() > end:
                return late
            time.sleep(0.01)

    def wait_without_launcher(self):
        """Waits for the end of all ranks, which need no launcher as long as none of them waits. Then it passes on what
        they have written."""
        time.sleep(LOST_AFTER_S + 1)
        open(self.end_file, "w").close()
        end = time.monotonic() + DEADLINE_S
        while (late := self.ranks_left()) and time.monotonic() < end:
            time.sleep(0.05)
        self.processes[0].send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes[0].wait(20)
        return late

    def close(self):
        """Ends a stopped victim, and all that is left. Returns what a job must not leave."""
        victim = self.lines("READY").get(self.trial.victim)
        if self.trial.how == "STOP" and victim:
            kill(int(victim[0]))
        left = []
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                left.append(f"process {process.pid} still runs")
        end = time.monotonic() + 5
        while self.processes_left() and time.monotonic() < end:
            time.sleep(0.02)
        for pid in self.processes_left():
            left.append(f"process {pid} is left")
            kill(pid)
        return left

    def knew(self):
        """When the last survivor knew of the loss; None if none has reported it."""
        moments = [float(fields[0]) for rank, fields in self.lines("FAILED").items() if rank != self.trial.victim]
        return max(moments, default=None)

    def faults(self):
        return faults_of(self)


class ElasticJob(Job):
    """A rank is killed, and the victim is struck while the others meet again."""

    def start_all(self, program, command, variables):
        tasks = os.path.join(HERE, "..", "elastic", "elastic_tasks.py")
        self.end_file = os.path.join(self.folder, "stop")
        self.goes_on_at = self.victim = None
        self._start([program, "run", "-np", str(RANKS), "--min-np", "1", "--no-prefix", "--", sys.executable, tasks,
                     "spreads", self.folder, self.mark], variables)  # fmt: skip

    def said(self):
        found = []
        for line in self.output().splitlines(keepends=True):
            if line.startswith("SAYS ") and line.endswith("}\n"):  # and not a last line of a killed rank
                found.append(json.loads(line[5:]))
        return found

    def wait(self, what):
        end = time.monotonic() + DEADLINE_S
        while not (found := what()) and time.monotonic() < end:
            time.sleep(0.005)
        return found

    def is_making_steps(self):
        return sum(1 for one in self.said() if "step" in one and one["size"] == RANKS) >= 3

    def strike(self):
        if not self.wait(self.is_making_steps):
            return "the job makes no steps"
        pids = {one["rank"]: one["pid"] for one in self.said() if "enters" in one and one["size"] == RANKS}
        others = sorted(set(pids) - {self.trial.victim})
        kill(pids[random.Random(self.trial.seed).choice(others)])
        self.victim = self.processes[0].pid if self.trial.victim == LAUNCHER else pids[self.trial.victim]
        self.strike_process(self.victim)
        self.said_before = len(self.said())
        return None

    def goes_on(self):
        """Whether ranks that know of the victim's end have made steps."""
        later = self.said()[self.said_before :]
        entered = [at for at, one in enumerate(later) if "enters" in one]
        if self.trial.how == "pause":  # it may come when the others have met
            return sum(1 for one in later if "step" in one) >= 3
        return bool(entered) and any("step" in one for one in later[entered[0] :])

    def wait_for_survivors(self):
        if self.trial.ends_launcher() and self.trial.how == "STOP":
            return self.wait_without_launcher()
        if self.trial.ends_launcher():
            self.wait(lambda: not self.ranks_left())
            return self.ranks_left()
        if self.wait(self.goes_on):
            self.goes_on_at = time.monotonic()
        open(self.end_file, "w").close()
        self.wait(lambda: self.processes[0].poll() is not None)
        return [] if self.processes[0].poll() is not None else self.processes_left()

    def knew(self):
        return self.goes_on_at

    def close(self):
        if self.trial.how == "STOP" and self.victim is not None:
            kill(self.victim)
        return super().close()

    def faults(self):
        faults = [line for line in self.output().splitlines() if line.startswith("farandole: check failed")]
        ends = [one for one in self.said() if "total" in one]
        faults += [f"a total is wrong: {one}" for one in ends if one["total"] != one["expected"]]
        if self.trial.ends_launcher():
            return faults
        if self.goes_on_at is None:
            faults.append("the ranks that are left do not go on")
        elif self.processes[0].poll() != 0 or not ends:
            faults.append(f"the launcher ended with {self.processes[0].poll()}, and {len(ends)} ranks have a total")
        return faults


def faults_of(job):
    """What is wrong with the survivors' reports."""
    trial = job.trial
    faults = [line for line in job.output().splitlines() if line.startswith(("WRONG", "farandole: check failed"))]
    failed = job.lines("FAILED")
    if trial.how == "pause":
        faults += [f"rank {rank} failed although no rank was lost: {fields}" for rank, fields in failed.items()]
        return faults
    failed.pop(trial.victim, None)
    for rank, (_, code, culprit, text) in failed.items():
        # A rank that never arrived is in the text of the time limit and not a culprit.
        if int(culprit) not in ((trial.victim, -1) if trial.phase == "start" else (trial.victim,)):
            faults.append(f"rank {rank} names rank {culprit}: {code}: {text}")
    if trial.phase not in ("start", "shutdown"):
        needed = set(range(RANKS)) - {trial.victim} if trial.victim != LAUNCHER else set()
        faults += [f"rank {rank} has not noticed" for rank in sorted(needed - set(failed))]
        texts = {ORDERED_CALL.sub("", fields[3]) for fields in failed.values()}
        if len(texts) > 1:
            faults.append(f"several texts: {texts}")
    return faults


def memory_names():
    return {name for name in os.listdir("/dev/shm") if "farandole" in name}


def run(trial, program):
    """Returns (faults, seconds until the last survivor knew, or None)."""
    before = memory_names()
    with tempfile.TemporaryDirectory(prefix="farandole-chaos-") as folder:
        job = (ElasticJob if trial.phase == "elastic" else Job)(trial, folder, program)
        try:
            trouble = job.strike()
            late = job.wait_for_survivors() if trouble is None else []
            faults = [trouble] if trouble else job.faults()
            if late:
                faults.append(f"ranks or processes {late} have not ended {DEADLINE_S} s after it")
        finally:
            left = job.close()
        faults += left
        if memory_names() - before:
            faults.append(f"shared memory is left: {memory_names() - before}")
        knew, exits = job.knew(), job.lines("EXITS")
        if faults:
            faults.append(job.output()[-6000:])
    struck = float(exits[trial.victim][0]) if exits else job.signalled
    return faults, knew - struck if knew and struck and trial.how != "pause" else None


def main():
    parser = chaos_trials.parser_of(__doc__, os.path.join(HERE, "../../../build/bin/farandole"))
    parser.add_argument("--start-timeout-s", type=float, default=START_TIMEOUT_S,
                        help="within which all ranks arrive; more where the machine is loaded by others")  # fmt: skip
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--mark", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(options.rank)
    Job.start_timeout_s = options.start_timeout_s
    trials = [Trial.of(seed) for seed in range(options.seed, options.seed + options.trials)]
    wrong = chaos_trials.run_all(trials, lambda trial: run(trial, options.program), options.jobs, options.each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
