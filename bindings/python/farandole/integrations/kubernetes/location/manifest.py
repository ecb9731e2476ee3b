"""--locations: where a pod's node is in the network, as variables of the ranks, an init container and its rights."""

from ..document import Item, Map
from ..names import account, metadata
from .labels import DEFAULT, ZONE

MODES = ("zone", "nodes")
FOLDER, FILE = "/farandole-location", "/farandole-location/topology"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_S = 600  # the least that Kubernetes allows
API_PORTS = (443, 6443)


def _is_file(o):
    """Whether ranks read a file. Under mpirun the variables of a worker's pod do not reach its ranks."""
    return o.locations == "nodes" or (o.locations == "zone" and o.kind == "mpijob")


def _zone_field(why=None):
    return Item(
        name="FARANDOLE_LOCATION",
        valueFrom=Map(fieldRef=Map(fieldPath=f"metadata.labels['{ZONE}']")),
        why=why,
    )


def variables(o):
    """The variables of the ranks."""
    if _is_file(o):
        why = "The init container writes this file: the groups of nodes that contain this pod's node."
        return [Item(name="FARANDOLE_TOPOLOGY", value=FILE, why=why)]
    if o.locations == "zone":
        why = (
            "Kubernetes copies this label of the node to the pod: from 1.35 on, or 1.33 with the feature gate "
            "PodTopologyLabelsAdmission. Before, the variable is empty, and the job runs without locations."
        )
        return [_zone_field(why)]
    return []


def init_containers(o):
    """The container that writes the file, before the ranks start."""
    if not _is_file(o):
        return []
    made = Item(name="location", image=o.image)
    made["command"] = ["python", "-m", "farandole.integrations.kubernetes.location"]
    mounts = [Item(name="location", mountPath=FOLDER)]
    if o.locations == "zone":
        made["args"] = ["--output", FILE, "--location", "$(FARANDOLE_LOCATION)"]
        made["env"] = [_zone_field("Kubernetes 1.35 or later copies this label of the node to the pod.")]
    else:
        made["args"] = ["--output", FILE, "--labels", "$(LOCATION_LABELS)"]
        node = Map(fieldRef=Map(fieldPath="spec.nodeName"))
        labels = o.location_labels or ",".join(DEFAULT)
        made["env"] = [
            Item(name="FARANDOLE_NODE_NAME", valueFrom=node),
            Item(name="LOCATION_LABELS", value=labels, why="The widest group of nodes first."),
        ]
        mounts.append(Item(name="location-token", mountPath=_ACCOUNT, readOnly=True))
        made.why = (
            "Labels of nodes are not in their pods: this container reads them from the API server. Without an answer "
            "it prints a warning and ends with 0, and the job runs without this node's location."
        )
    made["resources"] = Map(requests=Map(cpu="100m", memory="128Mi"), limits=Map(memory="128Mi"))
    made["volumeMounts"] = mounts
    made["securityContext"] = Map(
        allowPrivilegeEscalation=False, readOnlyRootFilesystem=True, capabilities=Map(drop=["ALL"])
    )
    return [made]


def volumes(o):
    if not _is_file(o):
        return []
    made = [Item(name="location", emptyDir=Map(sizeLimit="1Mi"))]
    if o.locations == "nodes":
        sources = [
            Item(serviceAccountToken=Map(path="token", expirationSeconds=_TOKEN_S)),
            Item(configMap=Map(name="kube-root-ca.crt", items=[Item(key="ca.crt", path="ca.crt")])),
        ]
        why = "A token for the init container alone; the ranks have none."
        made.append(Item(name="location-token", projected=Map(sources=sources), why=why))
    return made


def mounts(o):
    """What the ranks' container mounts."""
    return [Item(name="location", mountPath=FOLDER, readOnly=True)] if _is_file(o) else []


def rights(o):
    """The right to read nodes. Nodes are in no namespace, so that a Role cannot give it."""
    if o.locations != "nodes":
        return []
    api, name = "rbac.authorization.k8s.io", f"{o.account_namespace}-{o.name}-location"
    role = Item(apiVersion=f"{api}/v1", kind="ClusterRole", metadata=metadata(o, name))
    role["rules"] = [Item(apiGroups=[""], resources=["nodes"], verbs=["get"])]
    role.why = "The right to read nodes, and no other. The user who applies it must have this right too."
    binding = Item(apiVersion=f"{api}/v1", kind="ClusterRoleBinding", metadata=metadata(o, name))
    binding["roleRef"] = Map(apiGroup=api, kind="ClusterRole", name=name)
    binding["subjects"] = [Item(kind="ServiceAccount", name=account(o), namespace=o.account_namespace)]
    for one in (role, binding):
        one["metadata"].pop("namespace", None)
    return [role, binding]


def token_note(o):
    """Why the pod has no token of its service account."""
    if o.locations == "nodes":
        return "The ranks do not use the API server, so they get no token; the init container has its own."
    return "A job does not use the API server, so it gets no token."


def egress(o):
    """The rules of a NetworkPolicy that let the init container reach the API server."""
    if o.locations != "nodes":
        return []
    ports = [Item(protocol="TCP", port=port) for port in API_PORTS]
    why = "The API server, for the container that reads the node's labels. No policy can name its address."
    return [Item(ports=ports, why=why)]


def lines_of_header(o):
    if o.locations == "zone":
        return [
            "Locations: the zone of each pod's node, which Kubernetes 1.35 or later copies to the pod (1.33 and 1.34 "
            "with the feature gate PodTopologyLabelsAdmission). On others the job runs without locations."
        ]
    if o.locations == "nodes":
        return [
            "Locations: an init container reads the labels of its node. The ClusterRole and its binding are objects of "
            "the cluster: without the right to make them, have an administrator apply them once."
        ]
    return []
