"""ProcessCluster: a job system of plain processes of this host, for tests of jobs without Spark or Dask."""

import os
import pickle
import signal
import subprocess
import sys
import threading

from farandole.integrations.ranks.job import Cluster

AGENT = """
import pickle, sys
from farandole.integrations.ranks.agent import run_agent
sys.stdout.buffer.write(pickle.dumps(run_agent(*pickle.load(sys.stdin.buffer))))
"""


class ProcessCluster(Cluster):
    """Starts each agent as a process. `again`: starts an agent that has died once more, as job systems do."""

    name = "the test"
    stop_s = 5.0

    def __init__(self, task, again=False, come=None, explains=None):
        self.task, self.again, self.come, self.explains = task, again, come, explains
        self.agents, self.cancelled = [], False

    def address(self):
        return "127.0.0.1"

    def start(self, count, addresses, key, done):
        self.call = lambda number: pickle.dumps((addresses, key, {"order": number, "gpus": []}, self.task))
        threads, self.results, self.errors = [], [], []
        for number in range(count if self.come is None else self.come):
            self.agents.append(self.spawn())
            threads.append(threading.Thread(target=self.wait, args=(number,)))

        def work():
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            while self.come is not None and not self.cancelled:  # the missing agents
                threading.Event().wait(0.01)
            done([] if self.errors else self.results, self.errors[0] if self.errors else None)

        threading.Thread(target=work).start()

    def spawn(self):
        return subprocess.Popen([sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def wait(self, number):
        while True:
            data, _ = self.agents[number].communicate(self.call(number))
            if self.agents[number].returncode == 0:
                self.results.extend(pickle.loads(data))
                return
            if not self.again or self.cancelled:
                self.errors.append(RuntimeError(f"agent {number} ended with {self.agents[number].returncode}"))
                return
            self.agents[number] = self.spawn()

    def cancel(self):
        self.cancelled = True
        for one in self.agents:
            one.kill()

    def how_lost(self, facts, error):
        return self.explains if facts["order"] == 1 else None


def children(process):
    """The ids of the processes that `process` has started."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == process:
                    found.append(int(entry))
        except OSError:
            continue
    return found


def is_gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)
