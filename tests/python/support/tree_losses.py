"""Seeded trials: an inner rank of the agreement tree is killed while the others learn of another loss.

    python tests/python/support/tree_losses.py --trials 20 --seed 1

The 16 ranks are on four hosts, which are network namespaces (faulty_network.py), and agree along a tree of width 2. All
negotiate fresh names without a pause. A trial kills one rank, and then an inner rank: after a random time, or as soon
as the first rank reports a loss. It is right if each survivor names one of the two, with host and reason, in time.
Each trial prints one line, and a wrong one also what the ranks have printed; `--trials 1 --seed N` repeats it.
"""

import argparse
import os
import random
import re
import secrets
import subprocess
import sys
import tempfile
import time

from faulty_network import Network, address_of, why_not

RANKS, HOSTS = 16, 4
OF_A_HOST = RANKS // HOSTS
# Rank 0 serves the coordinator. These have ranks below them: 4 those of host 3 too, the others of their own host.
INNER = (1, 4, 5, 8, 9, 12, 13)
READY_S = 120
KNOWN_S = 30
PORT = 29500
REASON = "was lost: its process ended or its connection broke"


def rank_program():
    import farandole
    import numpy

    farandole.init()
    for step in range(10_000_000):
        try:
            total = farandole.allreduce(numpy.ones(10), name=f"values {step}", op=farandole.Op.SUM)
        except farandole.Error as error:
            print("KNEW", error.code, error.culprit_rank, error.culprit_host, error.text, sep="\t", flush=True)
            os._exit(0)
        if not (total == RANKS).all():
            print("WRONG", total, sep="\t", flush=True)
            os._exit(1)
        if step == 5:
            print("READY", flush=True)


class Job:
    def __init__(self, network, folder):
        self.paths = [os.path.join(folder, f"{rank}.out") for rank in range(RANKS)]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}
        variables.update(FARANDOLE_SIZE=str(RANKS), FARANDOLE_RENDEZVOUS=f"tcp://{address_of(0)}:{PORT}",
                         FARANDOLE_JOB_KEY=secrets.token_hex(16), FARANDOLE_AGREEMENT_WIDTH="2",
                         FARANDOLE_START_TIMEOUT_S=str(READY_S), OMP_NUM_THREADS="1")  # fmt: skip
        self.processes = []
        for rank, path in enumerate(self.paths):
            with open(path, "w") as output:
                command = [sys.executable, os.path.abspath(__file__), "--rank"]
                self.processes.append(subprocess.Popen(
                    network.command_on(rank // OF_A_HOST, command), stdout=output, stderr=subprocess.STDOUT,
                    env={**variables, "FARANDOLE_RANK": str(rank)}))  # fmt: skip

    def output(self, rank):
        with open(self.paths[rank], errors="replace") as file:
            return file.read()

    def line(self, rank, word):
        """The first line of a rank that begins with `word`, without it; None if there is none yet."""
        lines = (line.split("\t") for line in self.output(rank).split("\n")[:-1])
        return next((fields[1:] for fields in lines if fields[0] == word), None)

    def wait_for(self, word, ranks, count, seconds):
        """Waits until `count` of these ranks have printed `word`. Returns those that have not."""
        end = time.monotonic() + seconds
        while len(late := [rank for rank in ranks if self.line(rank, word) is None]) > len(ranks) - count:
            if time.monotonic() > end:
                break
            time.sleep(0.002)
        return late

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


def fault_of(lost, words):
    """What is wrong with the report of a survivor; None if nothing."""
    code, culprit, host, text = words
    if code != "PEER_LOST" or culprit not in map(str, lost):
        return f"names rank {culprit} ({code}) instead of one of {lost}: {text}"
    reason = rf"rank {culprit} on host-{int(culprit) // OF_A_HOST} \(process \d+\) {REASON}"
    if host != f"host-{int(culprit) // OF_A_HOST}" or not re.search(reason, text):
        return f"gives another host or reason: {text}"
    return None


def run_trial(seed, network, folder):
    """Returns a line about the trial, and the output of a wrong one."""
    chance = random.Random(seed)
    inner = chance.choice(INNER)
    first = chance.choice([rank for rank in range(1, RANKS) if rank != inner])
    delay_s = None if seed % 3 == 0 else chance.choice((0.001, 0.01, 0.1)) * chance.random()
    job = Job(network, folder)
    try:
        late = job.wait_for("READY", range(RANKS), RANKS, READY_S)
        if late:
            return f"WRONG: ranks {late} did not start", [job.output(rank) for rank in range(RANKS)]
        survivors = [rank for rank in range(RANKS) if rank not in (first, inner)]
        job.processes[first].kill()
        if delay_s is None:
            job.wait_for("KNEW", survivors, 1, KNOWN_S)
        else:
            time.sleep(delay_s)
        job.processes[inner].kill()
        late = job.wait_for("KNEW", survivors, len(survivors), KNOWN_S)
        faults = [f"rank {rank} does not know after {KNOWN_S} s" for rank in late]
        words = {rank: job.line(rank, "KNEW") for rank in survivors if rank not in late}
        faults += [f"rank {rank} {why}" for rank, said in words.items() if (why := fault_of((first, inner), said))]
        moment = "at the first report" if delay_s is None else f"after {delay_s * 1000:.2f} ms"
        named = sorted(said[1] for said in words.values())
        line = f"rank {first}, then inner rank {inner} {moment}; named: {', '.join(named)}"
        if faults:
            return f"WRONG: {line}: {'; '.join(faults)}", [job.output(rank) for rank in survivors]
        return f"right: {line}", []
    finally:
        job.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        os.execvp("unshare", ["unshare", "--map-root-user", sys.executable, *sys.argv])
    if (why := why_not()) is not None:
        sys.exit(f"tree_losses: {why}")
    wrong = 0
    with Network(HOSTS) as network:
        for seed in range(arguments.seed, arguments.seed + arguments.trials):
            with tempfile.TemporaryDirectory(prefix="farandole-test-") as folder:
                line, outputs = run_trial(seed, network, folder)
            print(f"seed {seed}: {line}", flush=True)
            for output in outputs:
                print(output)
            wrong += line.startswith("WRONG")
    print(f"{arguments.trials} trials: {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    rank_program() if sys.argv[1:] == ["--rank"] else main()
