"""Launchers of an elastic job of several nodes on this host, for tests: each Node is one `farandole run`."""

import json
import os
import subprocess
import sys
import threading
import time

from launch import FARANDOLE, free_port
from limits import allowed

HERE = os.path.dirname(os.path.abspath(__file__))
KEY = "0123456789abcdef0123456789abcdef"
EXIT_RENDEZVOUS, EXIT_TOO_FEW, EXIT_PEER_LOST, EXIT_TERMINATED = 200, 201, 202, 143


class Node:
    """One launcher, whose output is read as it arrives. `enter`: a command in front of it, such as that of a network
    namespace."""

    def __init__(self, job, number, flags="", key=KEY, enter=(), **variables):
        place = ["--node-rank", str(number)] if number is not None else []
        command = [
            *enter,
            FARANDOLE,
            "run",
            "--nnodes",
            job.nodes,
            *place,
            "--rendezvous",
            job.place,
            *job.flags.split(),
            *flags.split(),
        ]
        command += ["--", sys.executable, os.path.join(HERE, "elastic_tasks.py"), job.task, str(job.folder)]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
        clean.update({"OMP_NUM_THREADS": "1", "FARANDOLE_JOB_KEY": key, "FARANDOLE_START_TIMEOUT_S": "30",
                      "FARANDOLE_LOST_AFTER_S": "1", **variables})  # fmt: skip
        self.number = number
        self.process = subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.output, self.errors = [], []
        self.readers = [
            threading.Thread(target=self._read, args=pair)
            for pair in ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        ]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        with stream:
            lines.extend(stream)  # line by line, as they arrive

    @property
    def printed(self):
        return [
            json.loads(line.split("SAYS ")[1]) for line in list(self.output) if "SAYS " in line and line.endswith("\n")
        ]

    def all_with(self, key):
        return [one for one in self.printed if key in one]

    @property
    def words(self):
        return "".join(list(self.errors))

    def send_signal(self, number):
        self.process.send_signal(number)

    def code(self, timeout=30):
        code = self.process.wait(timeout)
        for reader in self.readers:
            reader.join()
        return code


def places(count):
    """A rendezvous that names the port of each of `count` nodes."""
    ports = set()
    while len(ports) < count:
        ports.add(free_port())
    return ",".join(f"127.0.0.1:{port}" for port in ports)


class Job:
    def __init__(self, folder, nodes, task="spreads", flags="", place=None):
        self.place = place or f"127.0.0.1:{free_port()}"
        self.folder, self.nodes, self.task, self.flags = folder, nodes, task, flags
        self.all = []

    def start(self, *numbers, **more):
        nodes = [Node(self, number, **more) for number in numbers]
        self.all += nodes
        return nodes

    def wait(self, what, timeout=30):
        end = time.monotonic() + allowed(timeout)
        while not what():
            assert time.monotonic() < end, self.report
            time.sleep(0.02)

    def until_steps_of(self, node, size, count=3, timeout=30):
        """Waits until rank 0, on `node`, has printed `count` more steps in a world of that size."""
        before = len([one for one in node.all_with("step") if one["size"] == size])
        self.wait(lambda: len([one for one in node.all_with("step") if one["size"] == size]) >= before + count, timeout)

    def until_steps(self, size, count=3):
        """The same, on whatever node rank 0 is."""

        def made():
            return sum(1 for node in self.all for one in node.all_with("step") if one["size"] == size)

        before = made()
        self.wait(lambda: made() >= before + count)

    def stop(self):
        (self.folder / "stop").touch()

    @property
    def report(self):
        return "\n".join(f"---- {node.process.args[-12:-4]} "
                         f"{node.process.poll()}\n{''.join(node.output)[-1500:]}\n{node.words[-2500:]}"
                         for node in self.all)  # fmt: skip

    def end(self):
        for node in self.all:
            if node.process.poll() is None:
                node.process.kill()
            node.code()


def ranks_of(node):
    """The processes of its ranks that have not ended; the launcher reaps ended ones only at its own end.

    The guardian is no rank: it outlives the launcher."""
    pid = node.process.pid
    pids = open(f"/proc/{pid}/task/{pid}/children").read().split()
    stats = {int(one): open(f"/proc/{one}/stat").read() for one in pids}
    return [one for one, stat in stats.items()
            if "(farandole-guard)" not in stat and stat.rpartition(")")[2].split()[0] != "Z"]  # fmt: skip


def assert_left_in_time(node, job):
    """Its rank ran the callbacks of on_leave long before the end of the 25 s after which it is killed."""
    (left,) = node.all_with("left")
    assert left["seconds"] > 10, job.report


def assert_right(node, job):
    """The sum is that of the sizes of all steps: none was lost, none was counted twice."""
    (end,) = node.all_with("total")[:1]
    assert end["total"] == end["expected"] > end["steps"] > 0, job.report
