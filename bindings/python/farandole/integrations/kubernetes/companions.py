"""Objects beside a job: Service, ServiceAccount, PodDisruptionBudget, claims, NetworkPolicy, PodMonitor."""

from . import dra
from .document import Item, Map
from .gang import pod_group
from .location import manifest as locations
from .names import INSTANCE, metadata, selector
from .options import PORTS
from .volumes import claims


def _object(kind, api, o, spec=None, name=None, why=None):
    made = Item(apiVersion=api, kind=kind, metadata=metadata(o, name), why=why)
    if spec is not None:
        made["spec"] = spec
    return made


def headless_service(o, name=None):
    spec = Map(clusterIP="None")
    spec.add(
        "publishNotReadyAddresses", True, "Pods resolve each other's names while they start, before any pod is ready."
    )
    spec["selector"] = selector(o)
    spec["ports"] = [Item(name="rendezvous", port=o.port_base)]
    return _object("Service", "v1", o, spec, name)


def service_account(o):
    made = _object("ServiceAccount", "v1", o)
    made["automountServiceAccountToken"] = False
    return made


def disruption_budget(o):
    launcher = 1 if o.kind == "mpijob" else 0
    spec = Map(minAvailable=o.min_nodes + launcher, selector=Map(matchLabels=selector(o)))
    spec.note(
        "minAvailable",
        "A number, because percentages need a scale subresource, which jobs do not have."
        + ("" if o.elastic else " A job of a fixed size needs all of its pods, so none may be drained."),
    )
    return _object("PodDisruptionBudget", "policy/v1", o, spec)


def new_claims(o):
    made = []
    for name, size in claims(o):
        spec = Map(accessModes=[o.access_mode])
        spec.add("storageClassName", o.storage_class)
        spec["resources"] = Map(requests=Map(storage=size))
        made.append(_object("PersistentVolumeClaim", "v1", o, spec, name))
    return made


def _own_ports(o):
    if o.kind == "mpijob" or (o.kind == "katib" and o.trial == "mpijob"):
        return [
            Item(
                protocol="TCP",
                port=1024,
                endPort=65535,
                why="mpirun's daemons listen on ports that they choose, sshd on 2222.",
            )
        ]
    return [Item(protocol="TCP", port=o.port_base, endPort=o.port_base + PORTS - 1)]


def network_policy(o):
    own = Item(podSelector=Map(matchLabels=selector(o)))
    spec = Map(podSelector=Map(matchLabels=selector(o)), policyTypes=["Ingress", "Egress"])
    spec["ingress"] = [
        Item(
            {"from": [own], "ports": _own_ports(o)},
            why="Only traffic between the pods of this job, on their fixed ports." if o.kind != "mpijob" else None,
        )
    ]
    if o.monitoring:
        ports = [Item(protocol="TCP", port=o.metrics_port, endPort=o.metrics_port + o.processes - 1)]
        spec["ingress"].append(
            Item(
                {"from": [Item(namespaceSelector=Map())], "ports": ports},
                why="Prometheus in any namespace.",
            )
        )
    dns = [Item(protocol="UDP", port=53), Item(protocol="TCP", port=53)]
    spec["egress"] = [
        Item(to=[own], ports=_own_ports(o)),
        Item(ports=dns, why="DNS at any address (a node-local cache has a link-local one)."),
    ]
    if o.kind == "katib":
        database = Item(
            namespaceSelector=Map(), podSelector=Map(matchLabels=Map({"katib.kubeflow.org/component": "db-manager"}))
        )
        spec["egress"].append(
            Item(
                to=[database],
                ports=[Item(protocol="TCP", port=6789)],
                why="Katib's metrics collector, a container of each trial's first pod, writes to Katib's database.",
            )
        )
    spec["egress"] += locations.egress(o)
    for port in o.allow_egress:
        spec["egress"].append(Item(ports=[Item(protocol="TCP", port=port)]))
    why = None
    if o.efa:
        why = (
            "EFA does not pass through the pod's network, so no policy applies to it. Its security group must allow "
            "all traffic from and to itself, in ingress and in egress (0.0.0.0/0 does not cover it)."
        )
    return _object("NetworkPolicy", "networking.k8s.io/v1", o, spec, why=why)


def pod_monitor(o):
    ends = [Item(port=f"metrics-{n}", interval="15s") for n in range(o.processes)]
    spec = Map(selector=Map(matchLabels=selector(o)), podTargetLabels=[INSTANCE], podMetricsEndpoints=ends)
    spec.note("podMetricsEndpoints", "One port a rank.")
    return _object("PodMonitor", "monitoring.coreos.com/v1", o, spec)


def around(o, service=True, budget=True):
    """(before, after): the objects that precede and follow the job in the manifest."""
    before = [headless_service(o)] if service else []
    if not o.service_account:
        before.append(service_account(o))
    before += locations.rights(o)
    before += new_claims(o) + dra.objects(o)
    if group := pod_group(o):
        before.append(group)
    after = [disruption_budget(o)] if budget and o.max_nodes > 1 and not o.spot else []
    if o.network_policy:
        after.append(network_policy(o))
    if o.monitoring:
        after.append(pod_monitor(o))
    return before, after
