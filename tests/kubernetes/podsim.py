"""podsim: runs manifests on this machine, each pod as processes in namespaces of its own, without a cluster.

    with PodSim(manifest, folder) as sim:
        sim.start()
        sim.wait(60)
        assert sim.result("train") == "Complete"

controllers.py says which pods there are and job_rules.py what becomes of a failed one, sandbox.py makes the namespaces
and fabric.py the network and the names. The files of this machine are the image, each container with a private layer over
them. Needs root, and Debian's iproute2, dnsmasq-base and nftables; `why_not()` says what is missing. There is no
scheduler, no API server and no admission: the manifest is taken as it is, and what it says of GPUs is not looked at.
"""

import base64
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import yaml

import controllers
from fabric import CLUSTER, Fabric, firewall, selects
from job_rules import JobState
from machine import PATH, cores_of, own_stem, passable, size_of, sweep, why_not
from pod import Pod

__all__ = ["PodSim", "expand", "read", "size_of", "sweep", "why_not"]


class PodSim:
    """`image`: {path in every container: a file or folder of this machine}; `variables`: those of the image; `entrypoint`:
    what containers without a command run. `backoff_s`: before a Job's controller replaces a pod; `crash_backoff_s`: before
    a kubelet restarts a container. `held`: host names of pods that are not created before release()."""

    def __init__(self, manifest, image=None, variables=None, entrypoint=(), families="4", backoff_s=0.05, crash_backoff_s=10,
                 held=(), claims=None):  # fmt: skip
        self.documents = read(manifest)
        self.image, self.entrypoint = dict(image or {}), list(entrypoint)
        self.variables = {"PATH": f"{os.path.dirname(sys.executable)}:{PATH}", "LANG": "C.UTF-8", **(variables or {})}
        self.backoff_s, self.crash_backoff_s = backoff_s, crash_backoff_s
        self.held = set(held)
        self.workloads = controllers.workloads(self.documents)
        self.results = {}
        self.pods = []  # all that ever were, in order of creation
        self.due = []  # (when, workload, plan): pods to create
        self.states = {id(one): JobState(one.job, len(one.pods)) for one in self.workloads if one.job}
        self.restarts = {}
        self.claims = dict(claims or {})
        self.hidden = set()  # host names that DNS does not know (yet)
        self.wrong = {}  # host name -> addresses that DNS gives instead
        self.published = None
        self.walls = {}
        sweep()
        self.folder = tempfile.mkdtemp(prefix=own_stem())
        os.chmod(self.folder, 0o755)
        try:
            self.fabric = Fabric(self.folder, families)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        self.key = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.story())
        self.end()

    def end(self):
        for pod in self.pods:
            pod.end()
        self.fabric.end()
        shutil.rmtree(self.folder)

    # ---- looking ----

    def pod(self, hostname):
        """The youngest pod of this host name, or of this stem of a name."""
        for pod in reversed(self.pods):
            if hostname in (pod.hostname, pod.name, pod.plan.stem):
                return pod
        raise KeyError(f"no pod {hostname} among {[pod.name for pod in self.pods]}")

    def living(self):
        return [pod for pod in self.pods if not pod.gone]

    def result(self, name):
        return self.results.get(name, "Running")

    def story(self):
        """What each pod said, for whoever must find out why a test failed."""
        return "\n".join(f"---- pod {pod.name} {','.join(pod.addresses)} {pod.phase} {pod.main.codes}\n{pod.output[-3000:]}"
                         for pod in self.pods)  # fmt: skip

    # ---- running ----

    def start(self):
        for workload in self.workloads:
            self.create(workload)
        self.step()

    def create(self, workload):
        limit = workload.job.get("parallelism", 1 << 30) if workload.kind == "Job" else 1 << 30
        now = time.monotonic()
        self.due += [(now, workload, plan) for plan in workload.pods[:limit]]

    def release(self, hostname):
        self.held.discard(hostname)

    def _begin_due(self):
        now = time.monotonic()
        for one in list(self.due):
            when, workload, plan = one
            if when > now or (plan.hostname or plan.stem) in self.held:
                continue
            if workload.in_order and not self._turn_of(workload, plan):
                continue
            self.due.remove(one)
            pod = Pod(self, workload, plan)
            self.pods.append(pod)
            pod.start()

    def _turn_of(self, workload, plan):
        earlier = workload.pods[: workload.pods.index(plan)]
        return all(any(pod.plan is one and (pod.ready or pod.phase == "Succeeded") for pod in self.living()) for one in earlier)

    def step(self):
        """What kubelets and controllers do until nothing more is to be done at this moment."""
        self._begin_due()
        for pod in self.living():
            for container in pod.hear():
                self._container_ended(pod, container)
            if pod.gone:
                continue
            if pod.deadline is not None and time.monotonic() >= pod.deadline:
                pod.signal(signal.SIGKILL)
            for one in pod.containers:
                if one.again_at and time.monotonic() >= one.again_at:
                    pod.start_container(one)
            if any(one.code is None and not one.running for one in pod.containers):
                pod.advance()
        self.refresh()

    def wait(self, timeout, until=None):
        """Lets time pass until all workloads that can end have ended, or `until` says so."""
        until = until or (lambda: all(self.results.get(one.name) for one in self.workloads))
        end = time.monotonic() + timeout
        while True:
            self.step()
            if until():
                return
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout} s; results {self.results}\n{self.story()}")
            time.sleep(0.01)

    def wait_for_ends(self, timeout):
        """Until each pod's container has ended once: for pods that would be started for ever."""
        count = sum(len(one.pods) for one in self.workloads)
        self.wait(timeout, lambda: len(self.pods) >= count and all(pod.main.codes for pod in self.pods))

    # ---- what becomes of pods ----

    def _container_ended(self, pod, container):
        policy = pod.plan.restart
        again = not pod.terminating and (policy == "Always" and not container.is_init or policy != "Never" and container.code)
        if again:
            container.again_at = time.monotonic() + self.crash_backoff_s
            self._group_is_hit(pod)
            return
        if pod.phase in ("Succeeded", "Failed"):
            if container.code == 0 and container.is_init:
                return
            code = container.code if container.is_init else max((one.code or 0 for one in pod.containers if not one.is_init), key=abs)
            self._pod_ended(pod, code, container.name)

    def _pod_ended(self, pod, code, container):
        workload = pod.workload
        pod.end()
        if workload.name in self.results:
            return
        if code >= 128 and pod.plan.exit_codes:
            self._replace(workload, pod.plan)
        elif workload.first_decides and code == 0:
            self._conclude(workload, "Complete")
        elif workload.decides:
            if pod.plan.role == workload.decides and pod.plan.index == 0 or (code != 0 and pod.plan.restart == "Never"):
                self._conclude(workload, "Complete" if code == 0 else f"Failed: {pod.name} ended with {code}")
        elif workload.job:
            self._job_pod_ended(workload, pod, code, container)
        elif workload.kind in ("StatefulSet", "Deployment", "LeaderWorkerSet"):
            if any(plan is pod.plan for plan in workload.pods):  # and not scaled away
                self._replace(workload, pod.plan)
            self._group_is_hit(pod)
        elif all(one.phase == "Succeeded" for one in self.pods if one.workload is workload):
            self._conclude(workload, "Complete")
        elif code != 0:
            self._conclude(workload, f"Failed: {pod.name} ended with {code}")

    def _job_pod_ended(self, workload, pod, code, container):
        state = self.states[id(workload)]
        if pod.plan not in workload.pods:  # its index was taken away
            return
        word = state.pod_ended(pod.plan.index, code, pod.conditions, container)
        if word == "done":
            self._conclude(workload, "Complete")
        elif word == "failed":
            if workload.recreate_all and self.restarts.get(workload.name, 0) < workload.max_restarts:
                self._recreate(workload)
            else:
                self._conclude(workload, f"Failed: {state.reason}")
        elif word == "again":
            self._replace(workload, pod.plan)
        else:
            begun = {id(one.plan) for one in self.pods} | {id(plan) for _, _, plan in self.due}
            waiting = [plan for plan in workload.pods if id(plan) not in begun]
            if waiting:
                self.due.append((time.monotonic(), workload, waiting[0]))

    def _replace(self, workload, plan):
        self.due.append((time.monotonic() + self.backoff_s, workload, plan))

    def _group_is_hit(self, pod):
        """LeaderWorkerSet: one pod that restarts takes its group along."""
        workload = pod.workload
        if workload.kind != "LeaderWorkerSet" or not workload.recreate_all:
            return
        group = "leaderworkerset.sigs.k8s.io/group-index"
        for other in self.living():
            if other.workload is workload and other.plan.labels[group] == pod.plan.labels[group]:
                other.end()
                if all(plan is not other.plan for _, _, plan in self.due):
                    self._replace(workload, other.plan)

    def _recreate(self, workload):
        """JobSet: all child Jobs anew, as attempt number so and so."""
        attempt = self.restarts[workload.name] = self.restarts.get(workload.name, 0) + 1
        for pod in self.living():
            if pod.workload is workload:
                pod.end()
        self.states[id(workload)] = JobState(workload.job, len(workload.pods))
        for plan in workload.pods:
            plan.labels["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
            plan.annotations["jobset.sigs.k8s.io/restart-attempt"] = str(attempt)
            self._replace(workload, plan)

    def _conclude(self, workload, result):
        self.results[workload.name] = result
        for pod in self.living():
            if pod.workload is workload and not pod.gone:
                pod.terminate(3 if workload.decides else None)
        self.due = [one for one in self.due if one[1] is not workload]

    def evict(self, pod, grace=None):
        """Drained from its node: the condition DisruptionTarget, SIGTERM, and the pod's grace."""
        pod.conditions.add("DisruptionTarget")
        pod.terminate(grace)

    def scale(self, name, count):
        """An Indexed Job, elastic: parallelism and completions change together; the highest indexes go first. A Deployment:
        the youngest pods go first."""
        workload = next(one for one in self.workloads if one.name == name)
        if workload.kind == "Deployment":
            return self._scale_deployment(workload, count)
        workload.job["parallelism"] = workload.job["completions"] = count
        document = {"kind": "Job", "metadata": {"name": name, "namespace": workload.namespace}, "spec": workload.job}
        wanted = controllers.job(document, self.documents).pods
        for plan in wanted[len(workload.pods) :]:
            workload.pods.append(plan)
            self.due.append((time.monotonic(), workload, plan))
        for pod in self.living():
            if pod.workload is workload and pod.plan.index >= count:
                pod.terminate()
        workload.pods = workload.pods[:count]
        self.states[id(workload)].count = count

    def _scale_deployment(self, workload, count):
        while len(workload.pods) < count:
            workload.pods.append(copy.copy(workload.pods[0]))
            self.due.append((time.monotonic(), workload, workload.pods[-1]))
        gone, workload.pods = workload.pods[count:], workload.pods[:count]
        self.due = [one for one in self.due if all(one[2] is not plan for plan in gone)]
        for pod in self.living():
            if any(pod.plan is plan for plan in gone):
                pod.terminate()

    # ---- names and policies ----

    def services(self):
        """(name, namespace, selector, also those that are not ready), of those without an address of their own."""
        for one in self.documents:
            if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None":
                spec = one["spec"]
                yield (one["metadata"]["name"], one["metadata"].get("namespace", "default"), spec.get("selector"),
                       spec.get("publishNotReadyAddresses", False))  # fmt: skip
        for workload in self.workloads:
            for name, selector, unready in workload.services:
                yield name, workload.namespace, selector, unready

    def records(self):
        """All that DNS should know now: services, the pods behind them, and the services that operators give to pods."""
        records = {}
        up = [pod for pod in self.living() if pod.addresses and not pod.terminating and pod.phase == "Running"]
        seen_ready = {id(pod): pod.ready for pod in up if pod.main.spec.get("readinessProbe") or pod.main.running}
        for name, namespace, selector, unready in self.services():
            if not selector:
                continue
            for pod in up:
                if pod.plan.namespace != namespace or not selects({"matchLabels": selector}, pod.plan.labels):
                    continue
                if pod.hostname in self.hidden or not (unready or seen_ready.get(id(pod))):
                    continue
                addresses = self.wrong.get(pod.hostname, pod.addresses)
                records.setdefault(f"{name}.{namespace}.svc.{CLUSTER}", []).extend(addresses)
                if pod.plan.subdomain == name:
                    for own in pod.names:
                        records[own] = addresses
        for pod in up:
            if pod.plan.with_service and pod.hostname not in self.hidden and seen_ready.get(id(pod)):
                records[f"{pod.plan.stem}.{pod.plan.namespace}.svc.{CLUSTER}"] = self.wrong.get(pod.hostname, pod.addresses)
        return records

    def resolves(self, name, namespace):
        return f"{name}.{namespace}.svc.{CLUSTER}" in (self.published or {})

    def refresh(self):
        records = self.records()
        if records != self.published:
            self.published = records
            self.fabric.publish(records)
        self._raise_walls()

    def _raise_walls(self):
        policies = [one for one in self.documents if one["kind"] == "NetworkPolicy"]
        if not policies:
            return
        where = lambda namespace: {"kubernetes.io/metadata.name": namespace}  # noqa: E731
        pods = [pod for pod in self.living() if pod.addresses]
        everyone = [(pod.plan.namespace, where(pod.plan.namespace), pod.plan.labels, pod.addresses) for pod in pods]
        everyone.append(("kube-system", where("kube-system"), {"k8s-app": "kube-dns"}, ["198.18.0.1", "fd18::1"]))
        for pod in pods:
            rules = firewall(policies, pod.plan.namespace, pod.plan.labels, everyone)
            if rules and self.walls.get(pod.name) != rules:
                self.walls[pod.name] = rules
                pod.enforce(rules)

    # ---- what a container gets ----

    def object(self, kind, name, namespace):
        for one in self.documents:
            meta = one["metadata"]
            if one["kind"] == kind and meta["name"] == name and meta.get("namespace", "default") == namespace:
                if kind == "Secret":
                    data = {key: base64.b64decode(value).decode() for key, value in one.get("data", {}).items()}
                    return {**data, **one.get("stringData", {})}
                return one.get("data", {})
        return None

    def volumes_of(self, pod):
        """(name, bytes, files) of the volumes that live and die with the pod."""
        namespace = pod.plan.namespace
        for volume in [*pod.plan.template.get("volumes", []), *self._operator_volumes(pod)]:
            if "emptyDir" in volume:
                yield volume["name"], size_of((volume["emptyDir"] or {}).get("sizeLimit", "1Gi")), {}
                continue
            files = {}
            for source in volume.get("projected", {}).get("sources", [volume]):
                files.update(self._files_of(source, pod, namespace))
            if any(key in volume for key in ("configMap", "secret", "downwardAPI", "projected", "files")):
                yield volume["name"], 4 << 20, files

    def _files_of(self, source, pod, namespace):
        if "files" in source:
            return source["files"]
        if "downwardAPI" in source:
            return {item["path"]: (self.field(pod, item["fieldRef"]["fieldPath"]), 0o644)
                    for item in source["downwardAPI"]["items"]}  # fmt: skip
        for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
            if key in source:
                spec = source[key]
                name = spec.get("name") or spec.get("secretName")
                data = self.object(kind, name, namespace)
                if data is None:
                    if spec.get("optional"):
                        return {}
                    raise ValueError(f"pod {pod.name} mounts {kind} {name}, which is in none of the manifests")
                mode = spec.get("defaultMode", 0o644)
                items = spec.get("items") or [{"key": one, "path": one} for one in data]
                return {item["path"]: (data[item["key"]], item.get("mode", mode)) for item in items}
        return {}

    def _operator_volumes(self, pod):
        for path, (_, _) in pod.plan.files.items():
            if pod.plan.files[path][0] == "ssh-key":
                yield {"name": "podsim-ssh", "files": self.ssh_key()}

    def ssh_key(self):
        if self.key is None:
            place = os.path.join(self.folder, "key")
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place], check=True)
            private, public = (open(place + end).read() for end in ("", ".pub"))
            self.key = {"id_rsa": (private, 0o600), "id_rsa.pub": (public, 0o644), "authorized_keys": (public, 0o644)}
        return self.key

    def field(self, pod, path):
        found = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if found:
            return getattr(pod.plan, found.group(1)).get(found.group(2), "")
        known = {"metadata.name": pod.name, "metadata.namespace": pod.plan.namespace, "metadata.uid": f"uid-{pod.name}",
                 "status.podIP": pod.addresses[0] if pod.addresses else "", "status.podIPs": ",".join(pod.addresses),
                 "status.hostIP": "198.18.0.1", "spec.nodeName": f"node-of-{pod.hostname}",
                 "spec.serviceAccountName": pod.plan.template.get("serviceAccountName", "default")}  # fmt: skip
        return known[path]

    def environment(self, pod, container):
        env = dict(self.variables)
        env["HOSTNAME"] = pod.hostname
        env.setdefault("HOME", "/root" if not self.user_of(pod, container)[0] else "/")
        env.update(KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443", KUBERNETES_PORT="tcp://10.96.0.1:443")
        if pod.plan.template.get("enableServiceLinks", True):
            for one in self.documents:
                if one["kind"] == "Service" and one["spec"].get("clusterIP") != "None":
                    self._link(one, env)
        for source in container.get("envFrom", []):
            for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                if key in source:
                    env.update(self.object(kind, source[key]["name"], pod.plan.namespace) or {})
        for one in [*container.get("env", []), *pod.plan.env]:
            env[one["name"]] = self.value_of(pod, container, one, env)
        return env

    def _link(self, service, env):
        name = service["metadata"]["name"].upper().replace("-", "_")
        port = service["spec"]["ports"][0]["port"]
        env.update({f"{name}_SERVICE_HOST": "10.96.7.7", f"{name}_SERVICE_PORT": str(port), f"{name}_PORT": f"tcp://10.96.7.7:{port}"})

    def value_of(self, pod, container, one, env):
        if "valueFrom" not in one:
            return expand(str(one.get("value") or ""), env)
        source = one["valueFrom"]
        if "fieldRef" in source:
            return self.field(pod, source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
            value = container.get("resources", {}).get(kind, {}).get(name, "1")
            return str(-(-int(cores_of(value) * 1000) // 1000)) if name == "cpu" else str(size_of(value))
        for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
            if key in source:
                data = self.object(kind, source[key]["name"], pod.plan.namespace)
                if data is None and not source[key].get("optional"):
                    raise ValueError(f"pod {pod.name} wants {kind} {source[key]['name']}, which is in none of the manifests")
                return (data or {}).get(source[key]["key"], "")
        raise ValueError(f"podsim does not know {source}")

    def user_of(self, pod, container):
        whole, own = pod.plan.template.get("securityContext", {}), container.get("securityContext", {})
        pick = lambda key: own.get(key, whole.get(key))  # noqa: E731
        return pick("runAsUser"), pick("runAsGroup"), [whole["fsGroup"]] if "fsGroup" in whole else []

    def mounts_of(self, pod, container):
        volumes = {one["name"]: one for one in pod.plan.template.get("volumes", [])}
        mounts = [[source, path, True] for path, source in self.image.items()]
        for one in container.get("volumeMounts", []):
            volume = volumes[one["name"]]
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                source = self.claims.get(claim) or os.path.join(self.folder, "claims", claim)
                os.makedirs(source, exist_ok=True)
                os.chmod(source, 0o777)
            elif "hostPath" in volume:
                source = volume["hostPath"]["path"]
            else:
                source = pod.volume(one["name"])
            if "subPath" in one:
                source = os.path.join(source, one["subPath"])
            mounts.append([source, one["mountPath"], one.get("readOnly", False)])
        for path, (text, _) in pod.plan.files.items():
            if text == "ssh-key":
                mounts.append([pod.volume("podsim-ssh"), path, True])
        return mounts

    def files_of(self, pod):
        files = {path: list(what) for path, what in pod.plan.files.items() if what[0] != "ssh-key"}
        files["/etc/hostname"] = [pod.hostname + "\n", 0o644]
        searches = pod.plan.template.get("dnsConfig", {}).get("searches", [])
        files["/etc/resolv.conf"] = [self.fabric.resolv_conf(pod.plan.namespace, searches), 0o644]
        own = "".join(f"{address}\t{' '.join([*pod.names, pod.hostname])}\n" for address in pod.addresses)
        files["/etc/hosts"] = ["127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + own, 0o644]
        return files

    def container_for(self, pod, one):
        spec = one.spec
        env = self.environment(pod, spec)
        command = list(spec.get("command") or pod.plan.default_command or self.entrypoint) + list(spec.get("args") or [])
        if not command:
            raise ValueError(f"pod {pod.name}: container {one.name} has no command, and the image none either")
        user, group, groups = self.user_of(pod, spec)
        security = spec.get("securityContext", {})
        return {"name": one.name, "argv": [expand(word, env) for word in command], "env": env,
                "directory": spec.get("workingDir", "/"), "user": user, "group": group, "groups": groups,
                "drop_all": "ALL" in security.get("capabilities", {}).get("drop", []),
                "no_new_privileges": security.get("allowPrivilegeEscalation") is False,
                "read_only_root": security.get("readOnlyRootFilesystem", False), "mounts": self.mounts_of(pod, spec), "passable": passable(),
                "files": self.files_of(pod), "log": os.path.join(pod.folder, one.name + ".log"),
                "layer": self._layer(pod, one.name), "cgroups": self._limit(pod, spec)}  # fmt: skip

    def _layer(self, pod, name):
        path = os.path.join(pod.folder, "layers", name)
        os.makedirs(path, exist_ok=True)
        return path

    def _limit(self, pod, spec):
        """Files of control groups that hold the container to its limits; made when they are first wanted."""
        limits = spec.get("resources", {}).get("limits", {})
        wanted = {}
        if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):  # version 2
            settings = {}
            if "cpu" in limits:
                settings["cpu.max"] = f"{int(cores_of(limits['cpu']) * 100000)} 100000"
            if "memory" in limits:
                settings["memory.max"] = size_of(limits["memory"])
            if settings:
                wanted["/sys/fs/cgroup"] = settings
        else:
            if "cpu" in limits:
                wanted["/sys/fs/cgroup/cpu"] = {"cpu.cfs_quota_us": int(cores_of(limits["cpu"]) * 100000)}
            if "memory" in limits:
                wanted["/sys/fs/cgroup/memory"] = {"memory.limit_in_bytes": size_of(limits["memory"])}
        places = []
        for root, settings in wanted.items():
            path = f"{root}/{own_stem()}{pod.name}-{spec['name']}"
            if not os.path.exists(path):
                os.mkdir(path)
                pod.cgroups.append(path)
                for name, value in settings.items():
                    with open(f"{path}/{name}", "w") as file:
                        file.write(str(value))
            places.append(f"{path}/cgroup.procs")
        return places


def expand(text, env):
    """$(NAME) as Kubernetes replaces it; $$ stands for one $."""
    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)",
                  lambda found: "$" if found.group(0) == "$$" else env.get(found.group(1), found.group(0)), text)  # fmt: skip


def read(manifest):
    """Documents of a manifest: text, a path, a document, or a list of any of them; Lists are taken apart."""
    if isinstance(manifest, dict):
        return manifest["items"] if manifest.get("kind") == "List" else [json.loads(json.dumps(manifest))]
    if isinstance(manifest, (list, tuple)):
        return [one for part in manifest for one in read(part)]
    if isinstance(manifest, os.PathLike) or "\n" not in manifest:
        with open(manifest) as file:
            manifest = file.read()
    return [one for document in yaml.safe_load_all(manifest) if document for one in read(document)]
