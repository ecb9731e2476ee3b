"""One simulated pod: its sandbox, its containers, and operations on it."""

import os
import random
import signal
import subprocess
import time

from fabric import CLUSTER, Sandbox
from machine import remove_cgroup

# Labels of a node that its pods get at their binding, from Kubernetes 1.35 on.
OF_NODE = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


class Container:
    def __init__(self, spec, is_init):
        self.spec, self.name, self.is_init = spec, spec["name"], is_init
        self.pid = 0  # until the sandbox has reported the start
        self.unsent = []  # signals for it since then
        self.code = None  # of its last end
        self.codes = []
        self.running = False
        self.again_at = 0.0


class Pod:
    """One pod, whose phase is Pending, Running, Succeeded or Failed. A replacement is another Pod with new
    addresses."""

    def __init__(self, sim, workload, plan):
        self.sim, self.workload, self.plan = sim, workload, plan
        end = "".join(random.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
        self.name = f"{plan.stem}-{end}" if plan.random else plan.stem
        self.hostname = plan.hostname or self.name
        self.node = f"node-of-{self.hostname}"  # the scheduler, if there is one, chooses another
        self.unschedulable = ""  # why it has no node
        self.labels = dict(plan.labels)
        self.unreported = []  # containers that have ended, of which the controllers do not know yet
        self.cut_off = False  # its node is, and its kubelet reports nothing
        self.conditions = set()
        self.addresses = []
        self.terminating = False
        self.deadline = None  # of its grace period
        self.preempted_by = ""  # the pod for which the scheduler has ended it
        self.gone = False  # removed from the machine
        self.replaced = False  # its successor was created before its end
        self.forgotten = False  # deleted in the API server while its node was away, and perhaps still running there
        spec = plan.template
        self.containers = [Container(one, True) for one in spec.get("initContainers", [])]
        self.containers += [Container(one, False) for one in spec["containers"]]
        self.folder = os.path.join(sim.folder, "pods", f"{len(sim.pods)}-{self.name}")
        os.makedirs(self.folder)
        self.sandbox = None
        self.cgroups = []

    # ---- State ----

    @property
    def main(self):
        return next(one for one in self.containers if not one.is_init)

    @property
    def phase(self):
        if self.sandbox is None or self.is_held:
            return "Pending"
        mains = [one for one in self.containers if not one.is_init]
        if any(one.running or one.code is None or one.again_at for one in mains):
            failed = [one for one in self.containers if one.is_init and one.code not in (None, 0) and not one.again_at]
            return "Failed" if failed else "Running"
        return "Succeeded" if all(one.code == 0 for one in mains) else "Failed"

    @property
    def is_held(self):
        """It has a node but no containers: images or, in a ComputeDomain, other nodes are missing."""
        if self.node in self.sim.pulling:
            return True
        if self.sim.scheduler is None or any(one.running or one.codes for one in self.containers):
            return False
        return self.sim.scheduler.domain_lacks_nodes(self.plan.template, self.sim.running())

    @property
    def code(self):
        return self.main.code

    @property
    def ready(self):
        """Running, and its readiness probe passes. Probes by TCP and HTTP pass when a process listens on the port."""
        if self.terminating or self.sandbox is None or not self.main.running:
            return False
        probe = self.main.spec.get("readinessProbe")
        if probe is None:
            return True
        if "exec" in probe:
            return self.exec(*probe["exec"]["command"]).returncode == 0
        port = (probe.get("tcpSocket") or probe["httpGet"])["port"]
        named = {one.get("name"): one["containerPort"] for one in self.main.spec.get("ports", [])}
        return self.listens(int(named.get(port, port)))

    def listens(self, port):
        for kind in ("tcp", "tcp6"):
            with open(f"/proc/{self.sandbox.pid}/net/{kind}") as file:
                for line in file.readlines()[1:]:
                    _, local, _, state = line.split()[:4]
                    if state == "0A" and int(local.rsplit(":", 1)[1], 16) == port:
                        return True
        return False

    @property
    def printed(self):
        """The bytes that its containers have printed."""
        paths = [os.path.join(self.folder, one.name + ".log") for one in self.containers]
        return sum(os.path.getsize(path) for path in paths if os.path.exists(path))

    @property
    def output(self):
        return self.log_of(self.main.name)

    def log_of(self, container):
        path = os.path.join(self.folder, container + ".log")
        if not os.path.exists(path):
            return ""
        with open(path, errors="replace") as file:
            return file.read()

    @property
    def names(self):
        """Its own names in DNS."""
        if not self.plan.subdomain:
            return []
        whole = f"{self.hostname}.{self.plan.subdomain}.{self.plan.namespace}.svc"
        return [f"{whole}.{CLUSTER}"]

    # ---- Operations ----

    def bind(self, node):
        """The scheduler has chosen this Node. The API server copies its topology to the pod."""
        self.node = node.name
        if self.sim.copies_topology:
            self.labels.update({key: value for key, value in node.labels.items() if key in OF_NODE})

    def start(self):
        self.sandbox = Sandbox(self.hostname)
        self.addresses = self.sim.fabric.plug(self.sandbox)
        self.sim.network.refresh()
        for name, size, files in self.sim.kubelet.volumes_of(self):
            group = self.plan.template.get("securityContext", {}).get("fsGroup")
            self.sandbox.send(volume=self.volume(name), bytes=size, files=files, group=group)
        os.set_blocking(self.sandbox.process.stdout.fileno(), False)
        self.advance()

    def volume(self, name):
        return os.path.join(self.folder, "volumes", name)

    def advance(self):
        """Starts init containers one after the other, then all others at once."""
        if self.sandbox is None or self.is_held:
            return
        for one in self.containers:
            if one.is_init and one.code != 0:
                if not one.running and one.code is None:
                    self.start_container(one)
                return
        if self.plan.waits_for and not self.sim.network.resolves(self.plan.waits_for, self.plan.namespace):
            return
        for one in self.containers:
            if not one.is_init and not one.running and one.code is None and not self.terminating:
                self.start_container(one)

    def start_container(self, container):
        container.running, container.again_at, container.pid = True, 0.0, 0
        self.sandbox.send(start=self.sim.kubelet.container_for(self, container))

    def take_ends(self):
        """Receives the sandbox's messages without blocking; returns the containers that have ended."""
        ended = []
        while self.sandbox is not None and not self.gone:
            try:
                message = self.sandbox.receive()
            except BlockingIOError:
                return ended
            one = next(one for one in self.containers if one.name == (message.get("started") or message.get("exited")))
            if "started" in message:
                one.pid = message["pid"]
                unsent, one.unsent = one.unsent, []
                for number in unsent:
                    self._signal(one, number)
            else:
                one.running, one.code = False, message["code"]
                one.codes.append(message["code"])
                ended.append(one)
        return ended

    def signal(self, number):
        for one in self.containers:
            if one.running and one.pid:
                self._signal(one, number)
            elif one.running:
                one.unsent.append(number)

    @staticmethod
    def _signal(container, number):
        try:
            os.kill(container.pid, number)
        except ProcessLookupError:
            pass

    def terminate(self, grace=None):
        """Deletes the pod as the kubelet does: preStop, SIGTERM, and SIGKILL after the grace period. Does not
        block: the
        simulation's wait() does the rest."""
        if grace is None:
            grace = self.plan.template.get("terminationGracePeriodSeconds", 30)
        if all(not one.running and one.code is None for one in self.containers):  # it waits for a node or an image
            self.terminating = True
            self.end()
            return
        self.terminating, self.deadline = True, time.monotonic() + grace
        for one in self.containers:
            stop = one.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
            if stop and one.running:
                self.exec(*stop["command"], timeout=grace)
        self.signal(signal.SIGTERM)
        self.sim.lifecycle.deleted(self)
        self.sim.network.refresh()

    def kill(self):
        """Kills all processes without notice, as the loss of the pod's node does."""
        self.conditions.add("DisruptionTarget")
        self.signal(signal.SIGKILL)

    def vanish(self):
        """Its node is cut off: packets are dropped. The pod is shown as Terminating, and nothing ends it."""
        self.conditions.add("DisruptionTarget")
        self.terminating = self.cut_off = True
        self.sim.fabric.set_link(self.sandbox, up=False)
        self.sim.network.refresh()

    def come_back(self):
        """The network of its node works again; its processes have been running all the time."""
        self.cut_off = False
        self.sim.fabric.set_link(self.sandbox, up=True)

    def exec(self, *command, timeout=30, container=None):
        """Runs a command in a container, as `kubectl exec` does."""
        chosen = next((one for one in self.containers if one.name == container), self.main)
        env = self.sim.kubelet.container_for(self, chosen)["env"]
        return subprocess.run(
            ["nsenter", "-t", str(chosen.pid), "-n", "-u", "-i", "-m", "-p", "-r", "-w", "--", *command],
            env=env,
            timeout=timeout,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def cut_network(self, cut=True):
        """Cuts the pod off from all others, or ends that. The control plane does not know: its records stay."""
        self.sim.fabric.set_link(self.sandbox, up=not cut)

    def drop_from(self, *others):
        """Drops the packets that come from these pods; none: drops no more. Packets to them still go out."""
        rules = "".join(f"add rule inet cut input {'ip6' if ':' in one else 'ip'} saddr {one} drop\n"
                        for pod in others for one in pod.addresses)  # fmt: skip
        table = "table inet cut {\n chain input {\n type filter hook input priority -10;\n }\n}\nflush table inet cut\n"
        self.enforce(table + rules)

    def enforce(self, rules):
        """Applies the rules of NetworkPolicies to the pod's network."""
        done = subprocess.run(["nsenter", "-t", str(self.sandbox.pid), "-n", "nft", "-f", "-"], input=rules, text=True,
                              capture_output=True)  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{rules}"

    def end(self):
        if self.sandbox is not None and not self.gone:
            self.sandbox.end()
        self.gone = True
        while self.cgroups:
            remove_cgroup(self.cgroups.pop())
