"""Elastic jobs of several nodes that come and go at random moments: launchers are started, killed, stopped for a moment
or sent SIGTERM, and ranks are killed. Also several at once, and while others join or leave.

At least one node that has the state is left alone, so the job must go on each time: no step is lost, each loss repeats
at most the step since the last commit, sums are right, and launchers end as they should.

  python tests/python/support/node_chaos.py --trials 100 --seed 1
"""

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../elastic"))

import chaos_trials  # noqa: E402
import elastic_nodes  # noqa: E402
from limits import allowed  # noqa: E402

MOST = 4  # nodes
LOST_AFTER_S = 3
PAUSE_S = 0.5  # of a launcher, far below LOST_AFTER_S
GOES_ON_WITHIN_S = 60
STEPS = 4  # that show that the job goes on


@dataclasses.dataclass(frozen=True)
class Trial:
    seed: int

    def __str__(self):
        return f"seed {self.seed}"

    def kind(self):
        return "nodes that come and go"


class Nodes:
    """One job: its launchers by number, and what has happened to them."""

    def __init__(self, folder, chance):
        self.job = elastic_nodes.Job(pathlib.Path(folder), f"1:{MOST}", place=elastic_nodes.places(MOST))
        self.chance = chance
        self.live = {}
        self.leaving = []  # got SIGTERM
        self.worlds_of_lost = {}  # number: worlds that the node had entered when its rank was killed
        self.losses = 0
        self.begin = time.monotonic()
        self.story = []

    def tell(self, *words):
        self.story.append(f"{time.monotonic() - self.begin:7.2f} s  " + " ".join(map(str, words)))

    # ---- What happens ----

    def start(self, number):
        self.tell("node", number, "is started")
        self.worlds_of_lost.pop(number, None)
        (self.live[number],) = self.job.start(number, FARANDOLE_LOST_AFTER_S=str(LOST_AFTER_S))

    def kill(self, number):
        self.tell("the launcher of node", number, "is killed")
        node = self.live.pop(number)
        node.send_signal(signal.SIGKILL)
        node.process.wait()
        self.losses += 1

    def terminate(self, number):
        self.tell("node", number, "gets SIGTERM")
        node = self.live.pop(number)
        node.send_signal(signal.SIGTERM)
        self.leaving.append((number, node))

    def pause(self, number):
        self.tell("the launcher of node", number, "stands still")
        self.live[number].send_signal(signal.SIGSTOP)
        time.sleep(PAUSE_S)
        self.live[number].send_signal(signal.SIGCONT)

    def kill_rank(self, number):
        self.tell("the rank of node", number, "is killed")
        self.worlds_of_lost[number] = len(self.live[number].all_with("enters"))
        for rank in elastic_nodes.ranks_of(self.live[number])[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rank), signal.SIGKILL)
        self.losses += 1

    def happen(self):
        """One event, of those that leave the state in at least one rank."""
        held = [number for number, node in self.live.items()
                if len(node.all_with("enters")) > self.worlds_of_lost.get(number, 0)]  # fmt: skip
        busy = {number for number, node in self.leaving if node.process.poll() is None}
        free = [number for number in range(MOST) if number not in self.live and number not in busy]
        young = [number for number in self.live if number not in held]
        choices = [(self.start, free)] * 2 + [(self.kill, young), (self.pause, list(self.live))]
        if len(held) > 1:
            choices += [(self.kill, held), (self.terminate, held)] * 2 + [(self.kill_rank, held)]
        event, numbers = self.chance.choice([one for one in choices if one[1]])
        event(self.chance.choice(numbers))

    # ---- What must follow ----

    def steps(self):
        return [one["step"] for node in self.job.all for one in node.all_with("step")]

    def ended(self):
        return {number: node.process.poll() for number, node in self.live.items() if node.process.poll() is not None}

    def goes_on(self):
        """Returns the seconds until the job has made some more steps, or None."""
        begin, before = time.monotonic(), max(self.steps(), default=0)
        end = begin + allowed(GOES_ON_WITHIN_S)
        while max(self.steps(), default=0) < before + STEPS:
            if self.ended() or time.monotonic() > end:
                return None
            time.sleep(0.02)
        return time.monotonic() - begin

    def faults_at_end(self):
        self.job.stop()
        codes = {number: node.code(allowed(60)) for number, node in self.live.items()}
        faults = [f"node {number} ended with {code}" for number, code in codes.items() if code != 0]
        for number, node in self.leaving:
            # 0: the signal came when the job ended.
            if node.code(allowed(60)) not in (elastic_nodes.EXIT_TERMINATED, 0):
                faults.append(f"node {number} ended with {node.code()} after SIGTERM")
        totals = [one for node in self.live.values() for one in node.all_with("total")]
        faults += [f"wrong total: {one}" for one in totals if one["total"] != one["expected"]]
        if not totals:
            faults.append("no rank has a total")
        steps = self.steps()
        if len(steps) - len(set(steps)) > self.losses:
            faults.append(f"{len(steps) - len(set(steps))} steps were repeated for {self.losses} losses")
        return faults


def run(trial):
    """Returns (faults, seconds until the job went on after the last event, or None)."""
    chance = random.Random(trial.seed)
    with tempfile.TemporaryDirectory(prefix="farandole-chaos-") as folder:
        nodes = Nodes(folder, chance)
        seconds = None
        try:
            for number in range(chance.randint(1, MOST)):
                nodes.start(number)
            faults = [] if nodes.goes_on() is not None else ["the job does not begin"]
            for _ in range(chance.randint(3, 8)):
                time.sleep(chance.choice((0, 0.05, 0.3, 2)) * chance.random())
                if nodes.ended():
                    break
                nodes.happen()
            if not faults:
                seconds = nodes.goes_on()
                faults = nodes.faults_at_end() if seconds is not None else [f"the job does not go on: {nodes.ended()}"]
        except Exception as error:  # its report has what the processes wrote
            faults = [f"{type(error).__name__}: {error}"]
        finally:
            nodes.job.end()
        if faults:
            faults += [*nodes.story, nodes.job.report]
    return faults, seconds


def main():
    parser = chaos_trials.parser_of(__doc__, elastic_nodes.FARANDOLE)
    options = parser.parse_args()
    elastic_nodes.FARANDOLE = os.path.abspath(options.program)
    trials = [Trial(seed) for seed in range(options.seed, options.seed + options.trials)]
    return 1 if chaos_trials.run_all(trials, run, options.jobs, options.each, "the job went on") else 0


if __name__ == "__main__":
    sys.exit(main())
