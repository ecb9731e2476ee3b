"""RayJob of KubeRay: a cluster of one head and of workers, and the pod that submits the program to it."""

import shlex

from . import values
from .companions import around
from .document import Item, Map
from .names import COMPONENT
from .operators import top
from .plain_kinds import template
from .pods import container, pod_spec, variables

_AGENT = "http://localhost:52365/api/local_raylet_healthz"
_CONTROL = "http://localhost:8265/api/gcs_healthz"


def _probes(box, *addresses):
    """KubeRay's own probes run wget, which slim images do not have; it adds none where a container has its own."""
    calls = "; ".join(f"urlopen('{address}', timeout=4)" for address in addresses)
    check = Map(command=["python", "-S", "-c", f"from urllib.request import urlopen; {calls}"])
    box["readinessProbe"] = Map(
        exec=check, initialDelaySeconds=10, timeoutSeconds=5, periodSeconds=10, failureThreshold=10
    )
    box["livenessProbe"] = Map(
        exec=check, initialDelaySeconds=30, timeoutSeconds=5, periodSeconds=10, failureThreshold=60
    )
    box.note("readinessProbe", "KubeRay's own probes run wget, which the image need not have.")


def _without_ranks(o, name, ports, env, memory):
    """The pod template of a container that runs no rank: no devices, and a small part of a node."""
    box = container(o, name, ["ray"], env, ports=ports, with_devices=False)
    del box["command"]  # KubeRay sets it
    box["resources"] = Map(requests=Map(cpu=1, memory=memory), limits=Map(memory=memory))
    box["resources"].note("requests", "For Ray's own processes; ranks run on the workers.")
    spec = pod_spec(o, [box], placed=False)
    for key in ("nodeSelector", "tolerations"):
        spec.pop(key, None)
    spec.add("nodeSelector", Map(o.system_selector) or None)
    return box, spec


def _head(o):
    ports = [
        Item(name="gcs-server", containerPort=6379),
        Item(name="dashboard", containerPort=8265),
        Item(name="client", containerPort=10001),
    ]
    ranks = Item(
        name="RANKS",
        value=str(o.max_nodes * o.processes),
        why="For the program: ScalingConfig(num_workers=int(os.environ['RANKS'])). Ray Train starts the ranks.",
    )
    box, spec = _without_ranks(o, "ray-head", ports, [*variables(o, has_ranks=False), ranks], "4Gi")
    _probes(box, _AGENT, _CONTROL)
    if o.elastic:
        spec.notes.pop("automountServiceAccountToken", None)
        if o.service_account:
            spec["automountServiceAccountToken"] = True
            spec.note(
                "automountServiceAccountToken",
                "Ray's autoscaler in this pod uses the API server: bind the account to a role that may get, list, "
                "watch and patch RayClusters, and get, list, watch and delete pods.",
            )
        else:
            del spec["serviceAccountName"], spec["automountServiceAccountToken"]
            spec.note("securityContext", "KubeRay makes the account of this pod, for Ray's autoscaler.")
    return template(o, spec, has_ranks=False)


def _submitter(o):
    _, spec = _without_ranks(o, "ray-job-submitter", [], variables(o, has_ranks=False), "1Gi")
    return template(o, spec, has_ranks=False)


def _cluster(o):
    head_params, worker_params = Map({"num-cpus": "0"}), Map()
    head_params.note("num-cpus", "No rank runs on the head, so that load cannot slow the cluster's control store.")
    box = container(o, "ray-worker", ["ray"], variables(o))
    del box["command"]  # KubeRay sets `ray start`
    _probes(box, _AGENT)
    worker = Item(
        groupName="workers",
        replicas=o.min_nodes,
        minReplicas=o.min_nodes,
        maxReplicas=o.max_nodes,
        rayStartParams=worker_params,
        template=template(o, pod_spec(o, [box], role="worker"), **{COMPONENT: "worker"}),
    )
    made = Map(rayVersion=o.ray_version)
    if o.elastic:
        made["enableInTreeAutoscaling"] = True
        made.note("enableInTreeAutoscaling", "Without it the number of workers stays at its first value.")
        made["autoscalerOptions"] = Map(
            idleTimeoutSeconds=60,
            securityContext=Map(allowPrivilegeEscalation=False, capabilities=Map(drop=["ALL"])),
        )
        made["autoscalerOptions"].note("idleTimeoutSeconds", "A worker without a rank for so long is removed.")
    made["headGroupSpec"] = Map(rayStartParams=head_params, template=_head(o))
    made["workerGroupSpecs"] = [worker]
    return made


def rayjob(o):
    spec = Map(entrypoint=shlex.join(o.command))
    spec.note(
        "entrypoint",
        "Runs once on the cluster. Ray Train starts the ranks and sets RANK and WORLD_SIZE in them after "
        "Python has started. farandole reads both in init() and never earlier.",
    )
    spec.add("shutdownAfterJobFinishes", True, "Otherwise the cluster and its GPUs stay allocated.")
    spec["backoffLimit"] = o.max_restarts
    spec.add("ttlSecondsAfterFinished", o.ttl)
    spec.add("activeDeadlineSeconds", values.seconds(o.max_runtime) if o.max_runtime else None)
    spec.add("suspend", True if o.queue else None, "Kueue starts it.")
    spec["submitterPodTemplate"] = _submitter(o)
    spec.note("submitterPodTemplate", "KubeRay's own has no securityContext, and a restricted namespace refuses it.")
    spec["rayClusterSpec"] = _cluster(o)
    before, after = around(o, service=False, budget=False)
    return [*before, top("RayJob", "ray.io/v1", o, spec), *after]
