"""The pod of a job: the settings that all kinds share, with their reasons."""

from .document import Item, Map
from .dra import add_claims
from .errors import WrongCombination
from .gang import pod_annotations, pod_labels, scheduler_of
from .hardware import node_selector, one_zone, resources, tolerations
from .location import manifest as locations
from .names import account, labels
from .options import PORTS
from .volumes import volumes

LEAVING_S = 5  # the part of the pod's grace period after the ranks have ended
_OPTION_OF = {
    "FARANDOLE_NNODES": "--nnodes",
    "FARANDOLE_PORT_BASE": "--port-base",
    "FARANDOLE_JOB_KEY": "--job-key-secret",
    "FARANDOLE_TERM_GRACE_S": "--grace",
    "FARANDOLE_METRICS_PORT": "--metrics-port",
    "FARANDOLE_EXPECT_EFA": "--efa",
    "FARANDOLE_LOCATION": "--locations nodes, or leave --locations out",
    "FARANDOLE_TOPOLOGY": "--location-labels, or leave --locations out",
}
CONTROLLER_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"


# --- metadata ---------------------------------------------------------------------------------------------------------


def _annotations(o, on_spot):
    made = Map({"sidecar.istio.io/inject": "false"})
    if not on_spot:
        made.add(
            "karpenter.sh/do-not-disrupt",
            "true",
            "Karpenter does not remove the nodes of a running job to consolidate others.",
        )
    made["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
    if on_spot:
        made.note(
            "cluster-autoscaler.kubernetes.io/safe-to-evict",
            "No karpenter.sh/do-not-disrupt and no PodDisruptionBudget on spot nodes: Karpenter does not evict pods "
            "that have one, also after AWS's notice, and their ranks would end with the node, without SIGTERM.",
        )
    made.update(pod_annotations(o))
    made.update(o.annotation)
    return made


def pod_metadata(o, has_ranks=True, **more):
    made = Map(
        labels=labels(o, **{"sidecar.istio.io/inject": "false", **pod_labels(o), **more}),
        annotations=_annotations(o, o.spot and has_ranks),
    )
    return made.note(
        "labels",
        "A sidecar delays the network and outlives the ranks, so the pod opts out in its own metadata "
        "(the job's metadata has no effect).",
    )


# --- variables --------------------------------------------------------------------------------------------------------


def _field(name, path, why=None):
    return Item(name=name, valueFrom=Map(fieldRef=Map(fieldPath=path)), why=why)


def key_secret(o):
    return o.job_key_secret or f"{o.name}-key"


def has_controller_uid(o):
    """Whether pods have the UID of a Job. JobSet and Trainer v2 create Jobs."""
    return o.kind in ("job", "jobset", "trainjob") or (o.kind == "katib" and o.trial in ("job", "trainjob"))


def _job_key(o):
    if o.job_key_secret or not has_controller_uid(o):
        where = Map(secretKeyRef=Map(name=key_secret(o), key="key"))
        return Item(
            name="FARANDOLE_JOB_KEY", valueFrom=where, why="Both ends of every connection prove possession of this key."
        )
    return _field(
        "FARANDOLE_JOB_KEY",
        CONTROLLER_UID,
        "The job's key is its UID, which is equal in all of its pods and differs between jobs. Every user who may "
        "read pods can read it; use --job-key-secret to restrict it.",
    )


def variables(o, nodes=None, rank_from=None, has_ranks=True):
    """The variables of the ranks; `nodes`: FARANDOLE_NNODES as text, if the controller does not set the size.
    `has_ranks`: false for a pod that has the variables, and no rank."""
    made = []
    if nodes:
        made.append(
            Item(
                name="FARANDOLE_NNODES",
                value=nodes,
                why="The controller sets the index of each pod, and not their number.",
            )
        )
    if rank_from:
        made.append(
            Item(
                name="FARANDOLE_RANK_FROM",
                value=rank_from,
                why="The number at the end of the pod's host name is its index.",
            )
        )
    made.append(
        Item(
            name="FARANDOLE_PORT_BASE",
            value=str(o.port_base),
            why=f"Ranks listen on {o.port_base} to {o.port_base + PORTS - 1} and on no other port.",
        )
    )
    made.append(_job_key(o))
    made.append(
        Item(
            name="FARANDOLE_TERM_GRACE_S",
            value=str(max(1, o.grace - LEAVING_S)),
            why="Seconds for ranks to save after SIGTERM; slightly less than the pod's grace period.",
        )
    )
    made.append(_field("FARANDOLE_POD_NAME", "metadata.name", "Errors and logs name the pod and its node."))
    made.append(_field("FARANDOLE_NODE_NAME", "spec.nodeName"))
    made += locations.variables(o) if has_ranks else []
    if o.monitoring:
        made.append(
            Item(
                name="FARANDOLE_METRICS_PORT",
                value=str(o.metrics_port),
                why="Local rank n serves metrics on this port plus n.",
            )
        )
        made.append(
            Item(
                name="FARANDOLE_METRICS_ADDRESS",
                value="*",
                why="Prometheus is in another pod; without this the metrics are on loopback only.",
            )
        )
    if o.json_logs:
        made.append(Item(name="FARANDOLE_RUN_JSON_LOGS", value="1", why="Each line is one JSON object."))
    made += _of_efa(o)
    own = {one["name"] for one in made}
    for name in o.env:
        if name in own:
            instead = f"use {_OPTION_OF[name]}" if name in _OPTION_OF else "leave it out"
            raise WrongCombination(f"--env {name}: the manifest sets this variable itself; {instead}")
    made += [Item(name=name, value=value) for name, value in o.env.items()]
    return made


def demands_efa(o):
    """Whether a job that cannot use EFA must not start. A transport that the user names is the user's choice."""
    return bool(o.efa) and not o.tcp_fallback and "FARANDOLE_TRANSPORT" not in o.env


def _of_efa(o):
    if not o.efa:
        return []
    made = []
    if demands_efa(o):
        made.append(
            Item(
                name="FARANDOLE_TRANSPORT",
                value="shm,efa",
                why="EFA is named, so a job that cannot use it does not start. With --tcp-fallback it uses TCP.",
            )
        )
    made.append(
        Item(
            name="FARANDOLE_EXPECT_EFA",
            value=str(o.efa),
            why="With fewer devices EFA is not used. FI_EFA_USE_DEVICE_RDMA and RDMAV_FORK_SAFE, which many samples "
            "set, are not needed.",
        )
    )
    if not o.hugepages_2mi:
        made.append(
            Item(
                name="FI_EFA_USE_HUGE_PAGE",
                value="0",
                why="Without huge pages fork() (a DataLoader's workers) cannot fail with ENOMEM.",
            )
        )
    return made


# --- the pod ----------------------------------------------------------------------------------------------------------


def container(o, name, command, env, ports=None, with_devices=True, **more):
    """One container. `command` is the list of its words. `with_devices`: it has ranks."""
    program = 2 if command[0] == "farandole" else 1
    made = Map(name=name, image=o.image, command=command[:program], args=command[program:])
    if not made["args"]:
        del made["args"]
    made["env"] = env
    own = [Item(name="rendezvous", containerPort=o.port_base)] if ports is None else ports
    if o.monitoring and with_devices:
        own = own + [Item(name=f"metrics-{n}", containerPort=o.metrics_port + n) for n in range(o.processes)]
    if own:
        made["ports"] = own
    made["resources"] = resources(o, with_devices)
    made.update(more)
    made["volumeMounts"] = volumes(o)[1] + (locations.mounts(o) if with_devices else [])
    made["securityContext"] = Map(
        allowPrivilegeEscalation=False,
        **({"readOnlyRootFilesystem": True} if o.read_only_root else {}),
        capabilities=Map(drop=["ALL"]),
    )
    return made


def pod_spec(o, containers, restart="Never", subdomain=None, placed=True, role=None):
    """`placed`: it has ranks, whose nodes are to be near each other."""
    made = Map()
    made.add("subdomain", subdomain, "With the headless Service of this name each pod has a name in DNS.")
    made.add("restartPolicy", restart)  # None: the operator sets it from its own field
    made["terminationGracePeriodSeconds"] = o.grace
    made.note(
        "terminationGracePeriodSeconds",
        "After SIGTERM the ranks save their state and exit with 143, never 0, which would count as finished.",
    )
    made["serviceAccountName"] = account(o)
    made.add("automountServiceAccountToken", False, locations.token_note(o))
    made.add(
        "enableServiceLinks",
        False,
        "Otherwise a Service named `master` in this namespace sets MASTER_PORT=tcp://... in every pod.",
    )
    if o.host_network:
        made["hostNetwork"] = True
        made["dnsPolicy"] = "ClusterFirstWithHostNet"
    made.add("schedulerName", scheduler_of(o))
    made.add("priorityClassName", o.priority_class)
    made["securityContext"] = Map(
        runAsNonRoot=True,
        runAsUser=o.run_as,
        runAsGroup=o.run_as,
        fsGroup=o.run_as,
        fsGroupChangePolicy="OnRootMismatch",
        seccompProfile=Map(type="RuntimeDefault"),
    )
    made.add("nodeSelector", node_selector(o) or None)
    made.add("tolerations", tolerations(o) or None)
    if placed and o.max_nodes > 1 and not o.zone:
        made.add("affinity", *one_zone(o, role))
    if placed and locations.init_containers(o):
        made["initContainers"] = locations.init_containers(o)
    made["containers"] = containers
    add_claims(o, made)
    made["volumes"] = volumes(o)[0] + (locations.volumes(o) if placed else [])
    return made


def run_command(o, rendezvous=None, nodes=None, processes=True, place=()):
    """`farandole run ... -- COMMAND`, which is equal in every pod."""
    words = ["farandole", "run"]
    if nodes:
        words += ["--nnodes", nodes]
    if processes:
        words += ["--nproc-per-node", o.nproc]
    if rendezvous:
        words += ["--rendezvous", rendezvous]
    words += place
    return [*words, "--", *o.command]
