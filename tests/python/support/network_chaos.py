"""Seeded trials: a job of three ranks on two or three hosts, and a fault of the network at a random moment.

    python tests/python/support/network_chaos.py --trials 200 --seed 1

The hosts are network namespaces (faulty_network.py). Host 0 has the coordinator. A fault that is shorter than
FARANDOLE_LOST_AFTER_S must be survived with exact sums. A longer one must end the job on all ranks in time, with one
text on each side of the cut that names a rank of the other side. Afterwards no process and no shared memory is left.
Each trial prints one line. A wrong one also prints what the job has printed, and `--trials 1 --seed N` repeats it: the
seed determines what happens, while the interleaving of the processes differs each time.
"""

import collections
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
import time

import chaos
import chaos_trials
from chaos import ORDERED_CALL, RANKS
from faulty_network import Network, address_of, build_slow_switch, why_not

LOST_AFTER_S = 3  # with packet loss the default, 10 s: a message may need several attempts
START_TIMEOUT_S = 8
# A rank waits for the decision on a failure for 2 * lost_after_s + suspect_after_s + 10 s at most, and the coordinator
# answers a rank that waits for the start 2 s after its limit. The rest is for a loaded machine.
KNOWN_AFTER_S = 2 * LOST_AFTER_S + 0.4 + 10 + 5
HANGS_AFTER_S = 60
PORT = 29400

# What is done to the packets between the sides. Those of SURVIVED last less than LOST_AFTER_S.
FATAL = ("partition", "one way", "outage", "link", "reset", "reset once")
SURVIVED = ("pause", "loss", "delay", "flapping")
PHASES = (*chaos.PHASES, "elastic")
# The loss of a process that a failure has ended, before the text of that failure.
AFTER_A_FAILURE = re.compile(r"^.* was lost: .*; shortly before, communicator '[^']*' had failed: ")
PROTECTIONS = ("none", "integrity", "encrypt")


def without_additions(text):
    """The failure itself: neither the loss that it led to nor what an ordered call adds, or the answer to a rank that
    arrives after the start has failed."""
    return ORDERED_CALL.sub("", AFTER_A_FAILURE.sub("", text)).removeprefix("the job did not start: ")


@dataclasses.dataclass(frozen=True)
class Trial:
    seed: int
    fault: str
    phase: str
    launcher: str  # "run": farandole run on each host; "none": rank 0 serves the coordinator, as under torchrun
    transport: str
    security: str
    ranks: tuple  # on each host
    # The cut. Packets in both directions of a link are concerned, or, with "one way", in the one given.
    links: tuple
    delay_s: float  # from the moment when all ranks are in the phase
    seconds: float  # how long it lasts
    connects_at_first_use: bool  # over TCP

    @staticmethod
    def of(seed):
        chance = random.Random(seed)
        fault = chance.choice(FATAL + SURVIVED)
        phase = chance.choice(PHASES if fault in ("partition", "pause") else chaos.PHASES)
        launcher = "run" if phase == "elastic" else chance.choice(("run", "none"))
        ranks = (1, 1, 1)
        if launcher == "none" and fault != "link":
            ranks = chance.choice(((1, 1, 1), (1, 2), (2, 1)))
        transport = chance.choice(("auto", "auto", "auto", "ofi:tcp")) if 2 not in ranks else "auto"
        links = links_of(fault, len(ranks), chance)
        security = chance.choice(PROTECTIONS) if transport == "auto" else "none"
        seconds = {"pause": chance.uniform(0.3, LOST_AFTER_S - 1.5), "flapping": chance.uniform(0.2, 0.6),
                   "outage": LOST_AFTER_S + chance.uniform(1.5, 5), "loss": 4, "reset once": 0.4}  # fmt: skip
        delay_s = chance.random() * 0.4
        lasts_s = seconds.get(fault, HANGS_AFTER_S)
        return Trial(seed, fault, phase, launcher, transport, security, ranks, links, delay_s, lasts_s,
                     chance.random() < 0.5)  # fmt: skip

    def host_of(self, rank):
        return [host for host, count in enumerate(self.ranks) for _ in range(count)][rank]

    def must_survive(self):
        return self.fault in SURVIVED

    def kind(self):
        return self.fault if self.phase != "elastic" else f"{self.fault} in an elastic reset"

    def __str__(self):
        cut = " ".join(f"{a}-{b}" for a, b in self.links if self.fault == "one way" or a < b)
        connections = ", connections at first use" if self.connects_at_first_use else ""
        return (f"seed {self.seed}: {self.fault} ({cut}, {self.seconds:.1f} s) in {self.phase}, {self.launcher}, "
                f"{self.transport}, {self.security}, ranks {'+'.join(map(str, self.ranks))}{connections}")  # fmt: skip


def links_of(fault, hosts, chance):
    if fault in ("loss", "delay"):
        pairs = [(a, b) for a in range(hosts) for b in range(a)]
    elif fault in ("link", "reset once"):
        pairs = [tuple(chance.sample(range(hosts), 2))]
    else:
        away = set(chance.sample(range(1, hosts), chance.randint(1, hosts - 1)))
        pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a in away and b not in away]
    if fault == "one way":
        return tuple(sorted(pairs if chance.random() < 0.5 else [(b, a) for a, b in pairs]))
    return tuple(sorted(pairs + [(b, a) for a, b in pairs]))


# ---- A job -----------------------------------------------------------------------------------------------------------


class Job(chaos.Job):
    """Output and the search for processes are those of a job on one host."""

    def __init__(self, trial, folder, program, network):
        self.trial, self.folder, self.network, self.program = trial, folder, network, program
        self.mark = f"farandole-chaos-{secrets.token_hex(8)}"
        self.end_file = os.path.join(folder, "end")
        self.struck = None
        self.longest_outage_s = 0
        self.is_unharmed = False
        self.processes = []
        variables = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}
        variables.update(FARANDOLE_TRANSPORT=trial.transport, FARANDOLE_SECURITY=trial.security,
                         FARANDOLE_LOST_AFTER_S=str(10 if trial.fault == "loss" else LOST_AFTER_S),
                         FARANDOLE_START_TIMEOUT_S=str(30 if trial.must_survive() else START_TIMEOUT_S),
                         FARANDOLE_JOB_KEY=secrets.token_hex(16), OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1",
                         CHAOS_END=self.end_file, CHAOS_VICTIM="-2",
                         CHAOS_STEPS="1" if trial.fault == "delay" else "10")  # fmt: skip
        if trial.connects_at_first_use:
            variables["FARANDOLE_TCP_MESH_RANKS"] = "1"
        if trial.transport == "auto":
            del variables["FARANDOLE_TRANSPORT"]
        self.start_all(variables)

    def start_all(self, variables):
        trial, rendezvous = self.trial, f"{address_of(0)}:{PORT}"
        command = [sys.executable, os.path.abspath(chaos.__file__), "--rank", trial.phase, "--mark", self.mark]
        if trial.launcher == "run":
            for host in range(len(trial.ranks)):
                self.start_on(host, [*self.launcher(host, str(len(trial.ranks)), rendezvous), "--", *command],
                              variables)  # fmt: skip
            return
        variables.update(FARANDOLE_RENDEZVOUS=f"tcp://{rendezvous}", FARANDOLE_SIZE=str(RANKS))
        for rank in range(RANKS):
            self.start_on(trial.host_of(rank), command, {**variables, "FARANDOLE_RANK": str(rank)})

    def launcher(self, host, nodes, rendezvous):
        return [self.program, "run", "--nnodes", nodes, "--node-rank", str(host), "-np", "1", "--no-prefix",
                "--rendezvous", rendezvous]  # fmt: skip

    def start_on(self, host, command, variables):
        self._start(self.network.command_on(host, command), variables)

    def wait(self, what, seconds=HANGS_AFTER_S):
        """The first true value of `what()`, or its last one."""
        end = time.monotonic() + seconds
        while not (found := what()) and time.monotonic() < end:
            time.sleep(0.01)
        return found

    def reach_phase(self):
        needed = 1 if self.trial.phase == "start" else RANKS
        if not self.wait(lambda: len(self.lines("READY")) >= needed):
            return f"ranks are not in the phase after {HANGS_AFTER_S} s"
        return None

    def strike(self):
        trial = self.trial
        time.sleep(trial.delay_s)
        self.struck = time.monotonic()
        if trial.fault in ("pause", "flapping"):
            self.interrupt()
        elif trial.fault != "delay":
            self.strike_once()
        # During the start no packet may be in the way of a short reset, and ranks of a host that was cut off may still
        # arrive in time after an outage.
        if trial.must_survive() or (trial.phase == "start" and trial.fault in ("reset once", "outage")):
            open(self.end_file, "w").close()

    def interrupt(self):
        """Cuts the links for a while, once or several times."""
        for _ in range(4 if self.trial.fault == "flapping" else 1):
            begin = time.monotonic()
            self.network.cut(self.trial.links)
            time.sleep(self.trial.seconds)
            self.network.heal()
            self.longest_outage_s = max(self.longest_outage_s, time.monotonic() - begin)
            time.sleep(1)

    def strike_once(self):
        trial, network = self.trial, self.network
        if trial.fault in ("reset", "reset once"):
            network.reset(trial.links)
        elif trial.fault == "loss":
            network.lose(trial.links, 20)
        else:
            network.cut(trial.links)
        if trial.fault in ("loss", "outage", "reset once"):
            time.sleep(trial.seconds)
            network.heal()

    def wait_for_ranks(self):
        """Returns the ranks that have not ended in time."""

        def late():
            left = set(range(RANKS)) - set(self.lines("FAILED")) - set(self.lines("DONE"))
            # A launcher ends ranks that wait for others when one of its own has failed, or at the start time-out.
            return sorted(left) if any(process.poll() is None for process in self.processes) else []

        # A short reset that met no packet has broken nothing. Then all ranks end in good order, with exact sums.
        if self.trial.fault == "reset once" and not self.wait(
            lambda: self.lines("FAILED") or not late(), KNOWN_AFTER_S
        ):
            self.is_unharmed = True
            open(self.end_file, "w").close()
        return late() if not self.wait(lambda: not late()) else []

    def close(self):
        left = []
        end = time.monotonic() + 20
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                left.append(f"process {process.pid} ({' '.join(process.args[5:10])}) still runs")
                process.kill()
                process.wait()
        self.wait(lambda: not self.processes_left(), 5)
        for pid in self.processes_left():
            left.append(f"process {pid} is left")
            os.kill(pid, signal.SIGKILL)
        return left

    def faults(self):
        """What is wrong with the reports of the ranks."""
        trial, failed = self.trial, self.lines("FAILED")
        wrong = [line for line in self.output().splitlines() if line.startswith(("WRONG", "farandole: check failed"))]
        if self.longest_outage_s > LOST_AFTER_S - 1:
            return wrong + [
                f"inconclusive: the machine was so busy that an outage lasted {self.longest_outage_s:.1f} s"
            ]
        if trial.must_survive() or (self.is_unharmed and not failed):
            wrong += [
                f"rank {rank} failed although it was connected again: {fields}" for rank, fields in failed.items()
            ]
            if len(self.lines("DONE")) < RANKS:
                wrong.append(f"only ranks {sorted(self.lines('DONE'))} are done")
            return wrong
        if trial.phase not in ("start", "shutdown"):
            wrong += [f"rank {rank} has not noticed" for rank in range(RANKS) if rank not in failed]
        for rank, (moment, code, culprit, text) in failed.items():
            if not self.may_name(rank, int(culprit), text):
                wrong.append(f"rank {rank} names rank {culprit}: {code}: {text}")
            if float(moment) - self.struck > KNOWN_AFTER_S:
                wrong.append(f"rank {rank} knows only after {float(moment) - self.struck:.1f} s")
        return wrong + self.several_texts()

    def may_name(self, rank, culprit, text):
        """Whether a rank may report this culprit."""
        trial = self.trial
        if culprit < 0:
            # The coordinator of a launcher is no rank; a rank that never arrived is in the text of the time limit.
            return trial.phase in ("start", "shutdown") or trial.launcher == "run"
        # A rank that failed has ended its process. One that waits elsewhere finds that, and the reason beside it.
        failed = self.lines("FAILED")
        if culprit in failed and without_additions(text) == without_additions(failed[culprit][3]):
            return True
        here, there = trial.host_of(rank), trial.host_of(culprit)
        if (here, there) in trial.links or (there, here) in trial.links:
            return True
        # The decision of the coordinator, which sees the ranks beyond the cut, is right wherever it arrives. It arrives
        # beyond the cut when the packets in that direction pass, or pass again.
        decided = {
            without_additions(fields[3]) for one, fields in failed.items() if not self.is_away(trial.host_of(one))
        }
        return self.is_away(there) and (without_additions(text) in decided or trial.fault in ("reset once", "link"))

    def is_away(self, host):
        """Whether a fault concerns the host and it is not on the side of the coordinator."""
        trial = self.trial
        if trial.fault in ("link", "reset once"):
            return any(host in link and (0 not in link or host != 0) for link in trial.links)
        return host != 0 and ((0, host) in trial.links or (host, 0) in trial.links)

    def several_texts(self):
        trial = self.trial
        if trial.phase in ("start", "shutdown") or trial.fault in ("reset", "reset once"):
            return []  # in a reset each rank finds its own connections broken
        texts = collections.defaultdict(set)
        for rank, fields in self.lines("FAILED").items():
            away = self.is_away(trial.host_of(rank))
            text = without_additions(fields[3])
            # A lost rank gets a text of its own, in which it is the culprit; the others need not have it.
            if int(fields[2]) != rank and trial.fault != "one way":
                texts[away if 0 in {end for link in trial.links for end in link} else 0].add(text)
        return [f"several texts on one side: {one}" for one in texts.values() if len(one) > 1]


class ElasticJob(Job):
    """A rank is killed, and the fault comes while the others meet again."""

    def start_all(self, variables):
        tasks = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "elastic", "elastic_tasks.py")
        self.stop_file = os.path.join(self.folder, "stop")
        for host in range(RANKS):
            command = [*self.launcher(host, f"1:{RANKS}", f"{address_of(0)}:{PORT}"), "--", sys.executable, tasks,
                       "spreads", self.folder, self.mark]  # fmt: skip
            self.start_on(host, command, variables)

    def said(self, host=None):
        found = []
        for number in range(RANKS) if host is None else (host,):
            with open(os.path.join(self.folder, f"{number}.out"), errors="replace") as file:
                found += [json.loads(line.split("SAYS ")[1]) for line in file
                          if line.startswith("SAYS ") and line.endswith("}\n")]  # fmt: skip
        return found

    def steps_of(self, size):
        return sum(1 for one in self.said() if "step" in one and one["size"] == size)

    def reach_phase(self):
        if not self.wait(lambda: self.steps_of(RANKS) >= 3):
            return "the job has made no steps"
        # The side of host 0 goes on, so a rank that has the state is left there.
        here = [host for host in range(RANKS) if not self.is_away(host)]
        hosts = [host for host in range(RANKS) if len(here) > 1 or host != 0]
        host = random.Random(self.trial.seed).choice(hosts)
        os.kill([one for one in self.said(host) if "enters" in one][-1]["pid"], signal.SIGKILL)
        return None

    def wait_for_ranks(self):
        trial = self.trial
        away = {host for host in range(RANKS) if self.is_away(host)} if not trial.must_survive() else set()
        before = self.steps_of(RANKS - len(away))
        self.goes_on = self.wait(lambda: self.steps_of(RANKS - len(away)) >= before + 5)
        if self.goes_on:
            self.goes_on_at = time.monotonic()
        open(self.stop_file, "w").close()
        self.ended = self.wait(lambda: all(process.poll() is not None for process in self.processes))
        self.away = away
        return []

    def faults(self):
        if not self.goes_on:
            return [f"ranks on {RANKS - len(self.away)} hosts do not go on"]
        wrong = []
        for host, process in enumerate(self.processes):
            code = process.poll()
            ends = [one for one in self.said(host) if "total" in one]
            if host not in self.away and (code != 0 or not ends):
                wrong.append(f"the launcher of host {host} ended with {code}")
            if host in self.away and code in (None, 0):
                wrong.append(f"the launcher of host {host}, which is cut off, ended with {code}")
            wrong += [f"a total is wrong: {one}" for one in ends if one["total"] != one["expected"]]
        return wrong


def run(trial, program, slow_switch):
    """Returns (faults, seconds until the last rank knew, or None)."""
    slow = slow_switch if trial.fault == "delay" else None
    with (
        tempfile.TemporaryDirectory(prefix="farandole-chaos-") as folder,
        Network(len(trial.ranks), slow, trial.delay_s / 2 + 0.05) as network,
    ):
        job = (ElasticJob if trial.phase == "elastic" else Job)(trial, folder, program, network)
        try:
            trouble = job.reach_phase()
            if trouble is None:
                job.strike()
            late = job.wait_for_ranks() if trouble is None else []
            faults = [trouble] if trouble else job.faults()
            if late:
                faults.append(f"ranks {late} have not ended {HANGS_AFTER_S} s after it")
        finally:
            left = job.close()
        faults += left
        knew = [float(fields[0]) for fields in job.lines("FAILED").values()]
        if faults:
            faults.append(job.output()[-12000:])
    known = getattr(job, "goes_on_at", None) or (max(knew) if knew else None)
    return faults, known - job.struck if known and job.struck and not trial.must_survive() else None


# ---- Many trials -----------------------------------------------------------------------------------------------------


def run_all(trials, program, jobs):
    """Returns how many were wrong."""
    before = chaos.memory_names()
    with tempfile.TemporaryDirectory(prefix="farandole-chaos-") as folder:
        slow_switch = build_slow_switch(folder) if any(trial.fault == "delay" for trial in trials) else None
        wrong = chaos_trials.run_all(trials, lambda trial: run(trial, program, slow_switch), jobs, prints_each=True)
    if left := chaos.memory_names() - before:
        print(f"shared memory is left: {left}")
    return wrong + bool(left)


def main():
    parser = chaos_trials.parser_of(
        __doc__, os.path.join(chaos.HERE, "../../../build/bin/farandole"), may_print_each=False
    )
    parser.add_argument("--seeds", help="these trials alone, separated by commas")
    parser.add_argument("--list", action="store_true", help="prints what the seeds stand for, and ends")
    options = parser.parse_args()
    seeds = [int(one) for one in options.seeds.split(",")] if options.seeds else list(
        range(options.seed, options.seed + options.trials))  # fmt: skip
    if options.list:
        print(*map(Trial.of, seeds), sep="\n")
        return 0
    if os.geteuid() != 0 and "CHAOS_HAS_A_NAMESPACE" not in os.environ:
        os.environ["CHAOS_HAS_A_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--map-root-user", sys.executable, *sys.argv])
    if reason := why_not():
        print(f"network_chaos: this machine cannot run these trials: {reason}", file=sys.stderr)
        return 77
    return 1 if run_all([Trial.of(seed) for seed in seeds], options.program, options.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
