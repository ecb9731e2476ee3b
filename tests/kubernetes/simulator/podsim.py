"""podsim runs manifests on this machine without a cluster: each pod is processes in namespaces of its own.

    with PodSim(manifest, folder) as sim:
        sim.start()
        sim.wait(60)
        assert sim.result("train") == "Complete"

controllers.py computes the pods. pod_lifecycle.py and job_rules.py decide what happens to pods that end. kubelet.py
computes what a container gets. cluster_network.py computes DNS records and applies NetworkPolicies. sandbox.py makes
the namespaces and fabric.py the network. The files of this machine are the image, and each container has a private
layer over them. The simulation needs root, and Debian's iproute2, dnsmasq-base and nftables; `why_not()` names what is
missing. admission.py has Pod Security's rules, seccomp.py the profile of container runtimes, and scheduler.py places
pods on nodes if the simulation has some. There is no API server: the manifest is used unchanged. Without nodes its
requests are ignored.
"""

import os
import shutil
import signal
import sys
import tempfile
import time

import controllers
from cluster_network import ClusterNetwork
from documents import expand, read
from fabric import Fabric
from kubelet import Kubelet
from machine import PATH, is_overloaded, own_stem, size_of, sweep, why_not
from pod_lifecycle import PodLifecycle
from scheduler import Scheduler

__all__ = ["PodSim", "expand", "read", "size_of", "sweep", "why_not"]


class PodSim:
    """`image`: {path in every container: a file or folder of this machine}; `variables`: those of the image;
    `entrypoint`: what containers without a command run. `backoff_s`: before a Job's controller replaces a pod the first
    time; `crash_backoff_s`: before a kubelet restarts a container the first time; both grow as on a cluster. `held`:
    host names of pods that are not created before release(). `claims`: {PersistentVolumeClaim: a folder, with its owner
    and mode}; others are folders that every user may write to. `admission`: the Pod Security level of the namespace.
    `nodes`: scheduler.Nodes; without them each pod has a node of its own. `pulling`: names of nodes that do not have
    the images before pulled(name). `dns_cache_s`: for how long the name server's cache answers (names that it has
    found, names that it has not found). `copies_topology`: whether pods get the zone of their node as a label, as from
    Kubernetes 1.35 on. `api_server`: (address, port) that pods get; `token`: that of every service account."""

    def __init__(
        self,
        manifest,
        image=None,
        variables=None,
        entrypoint=(),
        families="4",
        backoff_s=0.05,
        crash_backoff_s=10,
        held=(),
        claims=None,
        admission="privileged",
        nodes=None,
        pulling=(),
        dns_cache_s=None,
        copies_topology=True,
        api_server=("10.96.0.1", "443"),
        token="",
    ):
        self.documents = read(manifest)
        self.image, self.entrypoint = dict(image or {}), list(entrypoint)
        self.variables = {"PATH": f"{os.path.dirname(sys.executable)}:{PATH}", "LANG": "C.UTF-8", **(variables or {})}
        self.backoff_s, self.crash_backoff_s = backoff_s, crash_backoff_s
        self.held = set(held)
        self.workloads = controllers.workloads(self.documents)
        self.results = {}
        self.pods = []  # all pods of the simulation, also ended ones, in order of creation
        self.claims = dict(claims or {})
        self.admission, self.refusals = admission, []
        self.copies_topology, self.api_server, self.token = copies_topology, api_server, token
        self.scheduler = None if nodes is None else Scheduler(nodes, self.documents)
        self.pulling = set(pulling)
        self.hidden = set()  # host names without DNS records
        self.wrong = {}  # host name -> wrong addresses that DNS returns
        sweep()
        self.folder = tempfile.mkdtemp(prefix=own_stem())
        os.chmod(self.folder, 0o755)
        try:
            self.fabric = Fabric(self.folder, families, dns_cache_s)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self.network, self.kubelet, self.lifecycle = ClusterNetwork(self), Kubelet(self), PodLifecycle(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.logs())
        self.end()

    def end(self):
        for pod in self.pods:
            pod.end()
        self.fabric.end()
        shutil.rmtree(self.folder)

    # ---- State ----

    def pod(self, hostname):
        """The youngest pod with this host name, name or stem."""
        for pod in reversed(self.pods):
            if hostname in (pod.hostname, pod.name, pod.plan.stem):
                return pod
        raise KeyError(f"no pod {hostname} among {[pod.name for pod in self.pods]}")

    def living(self):
        return [pod for pod in self.pods if not pod.gone and not pod.forgotten]

    def running(self):
        """[(pod, its spec, its node's name)] of the pods that have a node."""
        return [(pod, pod.plan.template, pod.node) for pod in self.living() if pod.sandbox is not None]

    def result(self, name):
        return self.results.get(name, "Running")

    def conditions(self, name):
        """{type: reason} of the conditions in the status of the object of that name that are true."""
        return self.lifecycle.conditions_of(next(one for one in self.workloads if one.name == name))

    def logs(self):
        """The state and the last output of each pod, for the message of a failed test."""
        return "\n".join(f"---- pod {pod.name} {','.join(pod.addresses)} {pod.phase} "
                         f"{pod.main.codes}\n{pod.output[-3000:]}"
                         for pod in self.pods)  # fmt: skip

    # ---- Time ----

    def start(self):
        for workload in self.workloads:
            self.lifecycle.create(workload)
        self.step()

    def release(self, hostname):
        self.held.discard(hostname)

    def step(self):
        """Does everything that kubelets and controllers have to do at this moment."""
        self.lifecycle.begin_due()
        for pod in self.living():
            pod.unreported += pod.take_ends()
            while pod.unreported and not pod.cut_off:
                self.lifecycle.container_ended(pod, pod.unreported.pop(0))
            if pod.gone:
                continue
            if pod.deadline is not None and time.monotonic() >= pod.deadline:
                pod.signal(signal.SIGKILL)
            for one in pod.containers:
                if one.again_at and time.monotonic() >= one.again_at:
                    pod.start_container(one)
            if any(one.code is None and not one.running for one in pod.containers):
                pod.advance()
        self.network.refresh()

    def wait(self, timeout, until=None):
        """Runs the simulation until all workloads that can end have ended, or until() returns true.

        The timeout begins again, at most three times, if pods have printed something during it or the machine is
        overloaded: a slow machine is no failure."""
        until = until or (lambda: all(self.results.get(one.name) for one in self.workloads))
        printed = [self._printed()]
        end = time.monotonic() + timeout
        while True:
            self.step()
            if until():
                return
            if time.monotonic() > end:
                printed.append(self._printed())
                if len(printed) > 4 or printed[-1] == printed[-2] and not is_overloaded():
                    raise AssertionError(f"not within {timeout} s; results {self.results}\n{self.logs()}")
                end = time.monotonic() + timeout
            time.sleep(0.01)

    def _printed(self):
        """The bytes that all containers have printed."""
        return sum(pod.printed for pod in self.pods)

    def wait_for_ends(self, timeout):
        """Waits until each pod's container has ended once, for pods that are restarted for ever."""
        count = sum(len(one.pods) for one in self.workloads)
        self.wait(timeout, lambda: len(self.pods) >= count and all(pod.main.codes for pod in self.pods))

    def evict(self, pod, grace=None):
        """Drains the pod from its node: the condition DisruptionTarget, SIGTERM, and the pod's grace period."""
        pod.conditions.add("DisruptionTarget")
        pod.terminate(grace)

    def pulled(self, node):
        """The node has the images of its pods from now on."""
        self.pulling.discard(node)

    def vanish_node(self, name):
        """The node is cut off with all its pods, and gets no new ones. forget() lets their controllers replace them."""
        self.scheduler.nodes[name].reachable = False
        gone = [pod for pod in self.living() if pod.node == name and pod.sandbox is not None]
        for pod in gone:
            pod.vanish()
        return gone

    def forget(self, pod):
        """Deletes a pod whose node is away, as the garbage collector of pods does minutes later: it is replaced, and
        its processes run on."""
        self.lifecycle.forget(pod)

    def replace(self, pod):
        """The pod of a Deployment is to be deleted, and its node does not answer: its successor comes, and its object
        stays until forget()."""
        self.lifecycle.deleted(pod)

    def scale(self, name, count):
        """Scales an elastic Indexed Job or a Deployment."""
        self.lifecycle.scale(name, count)
