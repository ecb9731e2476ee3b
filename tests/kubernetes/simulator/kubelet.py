"""Computes what a container gets from its kubelet: variables, files, volumes, user and limits."""

import os
import re
import subprocess

from documents import data_of, expand
from machine import cores_of, own_stem, passable, size_of

# In the order of their numbers.
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE "
    "NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN "
    "SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE "
    "MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()


def dropped(rules):
    """The numbers of the capabilities that a container does not have."""
    out, kept = rules.get("drop", []), rules.get("add", [])
    return [number for number, name in enumerate(CAPABILITIES) if name not in kept and {"ALL", name} & set(out)]


class Kubelet:
    def __init__(self, sim):
        self.sim = sim
        self.key = None  # the SSH key, created at its first use

    def container_for(self, pod, one):
        spec = one.spec
        env = self.environment(pod, spec)
        command = list(spec.get("command") or pod.plan.default_command or self.sim.entrypoint) + list(
            spec.get("args") or []
        )
        if not command:
            raise ValueError(f"pod {pod.name}: container {one.name} has no command, and the image none either")
        user, group, groups = self.user_of(pod, spec)
        security = spec.get("securityContext", {})
        return {
            "name": one.name,
            "argv": [expand(word, env) for word in command],
            "env": env,
            "directory": spec.get("workingDir", "/"),
            "user": user,
            "group": group,
            "groups": groups,
            "dropped": dropped(security.get("capabilities", {})),
            "no_new_privileges": security.get("allowPrivilegeEscalation") is False,
            "seccomp": self.profile_of(pod, spec) == "RuntimeDefault",
            "read_only_root": security.get("readOnlyRootFilesystem", False),
            "mounts": self.mounts_of(pod, spec),
            "passable": passable(),
            "files": self.files_of(pod),
            "log": os.path.join(pod.folder, one.name + ".log"),
            "layer": self._layer(pod, one.name),
            "cgroups": self._limit(pod, spec),
        }

    # ---- volumes ----

    def volumes_of(self, pod):
        """Yields (name, bytes, files) of the volumes that exist as long as the pod."""
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
        if "serviceAccountToken" in source:
            return {source["serviceAccountToken"]["path"]: (self.sim.token, 0o644)}
        if "downwardAPI" in source:
            return {item["path"]: (self.field(pod, item["fieldRef"]["fieldPath"]), 0o644)
                    for item in source["downwardAPI"]["items"]}  # fmt: skip
        for kind, key in (("ConfigMap", "configMap"), ("Secret", "secret")):
            if key in source:
                spec = source[key]
                name = spec.get("name") or spec.get("secretName")
                data = self._data(kind, name, namespace)
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
            place = os.path.join(self.sim.folder, "key")
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place], check=True)
            private, public = (open(place + end).read() for end in ("", ".pub"))
            self.key = {"id_rsa": (private, 0o600), "id_rsa.pub": (public, 0o644), "authorized_keys": (public, 0o644)}
        return self.key

    def mounts_of(self, pod, container):
        volumes = {one["name"]: one for one in pod.plan.template.get("volumes", [])}
        mounts = [[source, path, True] for path, source in self.sim.image.items()]
        for one in container.get("volumeMounts", []):
            volume = volumes[one["name"]]
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                source = self.sim.claims.get(claim)
                if source is None:
                    source = os.path.join(self.sim.folder, "claims", claim)
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

    # ---- variables ----

    def field(self, pod, path):
        found = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if found:
            place = pod.labels if found.group(1) == "labels" else pod.plan.annotations
            return place.get(found.group(2), "")
        known = {"metadata.name": pod.name, "metadata.namespace": pod.plan.namespace, "metadata.uid": f"uid-{pod.name}",
                 "status.podIP": pod.addresses[0] if pod.addresses else "", "status.podIPs": ",".join(pod.addresses),
                 "status.hostIP": "198.18.0.1", "spec.nodeName": pod.node,
                 "spec.serviceAccountName": pod.plan.template.get("serviceAccountName", "default")}  # fmt: skip
        return known[path]

    def environment(self, pod, container):
        env = dict(self.sim.variables)
        env["HOSTNAME"] = pod.hostname
        host, port = self.sim.api_server
        env.setdefault("HOME", "/root" if not self.user_of(pod, container)[0] else "/")
        env.update(KUBERNETES_SERVICE_HOST=host, KUBERNETES_SERVICE_PORT=port, KUBERNETES_PORT=f"tcp://{host}:{port}")
        if pod.plan.template.get("enableServiceLinks", True):
            for one in self.sim.documents:
                if one["kind"] == "Service" and one["spec"].get("clusterIP") != "None":
                    self._link(one, env)
        for source in container.get("envFrom", []):
            for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                if key in source:
                    env.update(self._data(kind, source[key]["name"], pod.plan.namespace) or {})
        for one in [*container.get("env", []), *pod.plan.env]:
            env[one["name"]] = self.value_of(pod, container, one, env)
        return env

    def _link(self, service, env):
        name = service["metadata"]["name"].upper().replace("-", "_")
        port = service["spec"]["ports"][0]["port"]
        env.update(
            {
                f"{name}_SERVICE_HOST": "10.96.7.7",
                f"{name}_SERVICE_PORT": str(port),
                f"{name}_PORT": f"tcp://10.96.7.7:{port}",
            }
        )

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
                data = self._data(kind, source[key]["name"], pod.plan.namespace)
                if data is None and not source[key].get("optional"):
                    raise ValueError(
                        f"pod {pod.name} wants {kind} {source[key]['name']}, which is in none of the manifests"
                    )
                return (data or {}).get(source[key]["key"], "")
        raise ValueError(f"podsim does not support {source}")

    # ---- users, files and limits ----

    def user_of(self, pod, container):
        whole, own = pod.plan.template.get("securityContext", {}), container.get("securityContext", {})
        pick = lambda key: own.get(key, whole.get(key))  # noqa: E731
        return pick("runAsUser"), pick("runAsGroup"), [whole["fsGroup"]] if "fsGroup" in whole else []

    def profile_of(self, pod, container):
        """The seccomp profile; kubelets without --seccomp-default apply none where none is given."""
        for one in (container, pod.plan.template):
            profile = one.get("securityContext", {}).get("seccompProfile", {}).get("type")
            if profile:
                return profile
        return "Unconfined"

    def files_of(self, pod):
        files = {path: list(what) for path, what in pod.plan.files.items() if what[0] != "ssh-key"}
        files["/etc/hostname"] = [pod.hostname + "\n", 0o644]
        searches = pod.plan.template.get("dnsConfig", {}).get("searches", [])
        files["/etc/resolv.conf"] = [self.sim.fabric.resolv_conf(pod.plan.namespace, searches), 0o644]
        own = "".join(f"{address}\t{' '.join([*pod.names, pod.hostname])}\n" for address in pod.addresses)
        files["/etc/hosts"] = ["127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + own, 0o644]
        return files

    def _layer(self, pod, name):
        path = os.path.join(pod.folder, "layers", name)
        os.makedirs(path, exist_ok=True)
        return path

    def _limit(self, pod, spec):
        """Files of control groups that enforce the container's limits; the groups are created at their first use."""
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

    def _data(self, kind, name, namespace):
        return data_of(self.sim.documents, kind, name, namespace)
