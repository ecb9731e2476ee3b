"""Runs the pods of a manifest's Jobs and its Pods as containers of podman from a real image until they end.

    unshare --net --mount python run_in_podman.py MANIFEST IMAGE FOLDER [PODMAN OPTIONS...]

The pods are those that controllers.py derives, with the names, variables, users, rights, memory and volumes of the
manifest. podman's own `kube play` does not support Jobs in Debian 12. The network is a bridge in this process's own
namespace. Exits with the largest exit code of a pod. Each line of a pod's output is printed after the pod's name.
"""

import os
import subprocess
import sys
import threading

import controllers
from machine import size_of
from podsim import expand, read

NET = "198.19.0"  # reserved for tests, never routed


def name_of(plan):
    return plan.hostname or plan.stem


def field(path, plan, name):
    if path.startswith("metadata.labels['"):
        return plan.labels[path.split("'")[1]]
    return {"metadata.name": name, "metadata.namespace": plan.namespace, "spec.nodeName": "this-machine"}[path]


def environment(plan, box, name):
    found = {}
    for one in [*plan.env, *box.get("env", [])]:
        value = one.get("value", "")
        if "valueFrom" in one:
            value = field(one["valueFrom"]["fieldRef"]["fieldPath"], plan, name)
        found[one["name"]] = expand(value, found)
    return found


def volumes(spec, box, folder):
    """Yields options for the container's mounts: memory for an emptyDir, a folder of this machine for a claim."""
    kinds = {one["name"]: one for one in spec.get("volumes", [])}
    for mount in box.get("volumeMounts", []):
        volume, path = kinds[mount["name"]], mount["mountPath"]
        if "emptyDir" in volume and path == "/dev/shm":
            yield f"--shm-size={size_of(volume['emptyDir'].get('sizeLimit', '64Mi'))}"
        elif "emptyDir" in volume:
            yield f"--tmpfs={path}:mode=1777"
        elif "persistentVolumeClaim" in volume:
            place = os.path.join(folder, volume["persistentVolumeClaim"]["claimName"])
            os.makedirs(place, exist_ok=True)
            os.chown(place, -1, spec.get("securityContext", {}).get("fsGroup", 0))
            os.chmod(place, 0o2775)
            yield f"--volume={place}:{path}"
        else:
            raise SystemExit(f"play: volume {mount['name']} is of a kind that is not supported")


def options(plan, box, index, hosts, folder):
    spec = plan.template
    security = {**spec.get("securityContext", {}), **box.get("securityContext", {})}
    yield from (
        "--rm",
        f"--name=play-{name_of(plan)}",
        f"--hostname={name_of(plan)}",
        f"--network=ns:/run/netns/play-{index}",
    )
    yield from (f"--add-host={name}:{address}" for name, address in hosts.items())
    yield f"--user={security.get('runAsUser', 0)}:{security.get('runAsGroup', 0)}"
    yield from (f"--cap-drop={one}" for one in security.get("capabilities", {}).get("drop", []))
    if security.get("allowPrivilegeEscalation") is False:
        yield "--security-opt=no-new-privileges"
    if security.get("readOnlyRootFilesystem"):
        yield "--read-only"
    if "fsGroup" in security:
        yield f"--group-add={security['fsGroup']}"
    limits = box.get("resources", {}).get("limits", {})
    if "memory" in limits:
        yield f"--memory={size_of(limits['memory'])}"
    yield from volumes(spec, box, folder)
    yield from (f"--env={name}={value}" for name, value in environment(plan, box, name_of(plan)).items())


def plug(count):
    """Makes a bridge and a namespace for each pod. They end with this process, because only its mounts refer to
    them."""
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
    lines = ["link set lo up", "link add br0 type bridge", "link set br0 up"]
    for index in range(count):
        subprocess.run(["ip", "netns", "add", f"play-{index}"], check=True)
        lines += [
            f"link add v{index} type veth peer name eth0 netns play-{index}",
            f"link set v{index} master br0",
            f"link set v{index} up",
        ]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    for index in range(count):
        own = ["link set lo up", f"addr add {NET}.{10 + index}/24 dev eth0", "link set eth0 up"]
        subprocess.run(["ip", "-n", f"play-{index}", "-batch", "-"], input="\n".join(own), text=True, check=True)


def run(command, name, codes):
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    ) as process:
        for line in process.stdout:
            print(f"{name}: {line}", end="", flush=True)
    codes[name] = process.returncode


def main():
    manifest, image, folder, *podman = sys.argv[1:]
    podman = ["podman", *podman]
    pods = [plan for one in controllers.workloads(read(manifest)) if one.kind in ("Job", "Pod") for plan in one.pods]
    plug(len(pods))
    hosts = {f"{name_of(plan)}.{plan.subdomain}": f"{NET}.{10 + index}" for index, plan in enumerate(pods)}
    codes, threads = {}, []
    for index, plan in enumerate(pods):
        (box,) = plan.template["containers"]
        words = [
            expand(word, environment(plan, box, name_of(plan)))
            for word in [*box.get("command", []), *box.get("args", [])]
        ]
        command = [*podman, "run", *options(plan, box, index, hosts, folder), image, *words]
        threads.append(threading.Thread(target=run, args=(command, name_of(plan), codes)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    print(f"play: {codes}", flush=True)
    sys.exit(max(codes.values(), key=abs))


if __name__ == "__main__":
    main()
