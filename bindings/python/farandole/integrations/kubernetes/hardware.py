"""Hardware and placement of a pod: devices, CPUs and memory, tolerations, node labels, one zone."""

from . import values
from .document import Item, Map
from .dra import claimed
from .errors import WrongCombination
from .location.labels import ZONE
from .names import selector


def devices(o):
    """Extended resources: the request is the limit, or the API server refuses the pod."""
    made = Map()
    if o.gpus and not o.device_class:
        made[o.gpu_resource] = o.gpus
    if o.efa:
        made["vpc.amazonaws.com/efa"] = o.efa
    if o.hugepages_2mi:
        made["hugepages-2Mi"] = o.hugepages_2mi
    return made


def resources(o, with_devices=True):
    own = devices(o) if with_devices else Map()
    requests = Map(cpu=int(o.cpus) if o.cpus.isdigit() else o.cpus, memory=o.memory, **own)
    limits = Map(memory=o.memory, **own)
    made = Map(requests=requests, limits=limits, **(claimed(o) if with_devices else {}))
    if o.why.get("cpu"):
        made.note("requests", o.why["cpu"][0].upper() + o.why["cpu"][1:])
    return made.note("limits", "No CPU limit: all ranks wait for a throttled one.")


def tolerations(o):
    made = []
    if o.gpus:
        made.append(Item(key=o.gpu_resource, operator="Exists", effect="NoSchedule"))
    if o.efa:
        made.append(Item(key="aws.amazon.com/efa", operator="Exists", effect="NoSchedule"))
    for word in o.toleration:
        pair, _, effect = word.partition(":")
        key, sign, value = pair.partition("=")
        if not values.is_label_value(value):
            raise WrongCombination(f"--toleration '{word}': '{value}' is no value of a taint")
        if (
            not values.is_key(key)
            or word.endswith(":")
            or (effect and effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        ):
            raise WrongCombination(f"--toleration '{word}' is not KEY[=VALUE][:NoSchedule|PreferNoSchedule|NoExecute]")
        made.append(
            Item(
                key=key,
                operator="Equal" if sign else "Exists",
                **({"value": value} if sign else {}),
                **({"effect": effect} if effect else {}),
            )
        )
    return made


def node_selector(o):
    made = Map()
    if o.instance_type:
        made["node.kubernetes.io/instance-type"] = o.instance_type
    if o.spot:
        key, _, value = o.capacity_label.partition("=")
        made[key] = value
    if o.zone:
        made[ZONE] = o.zone
    for key, value in o.node_selector.items():
        if made.get(key, value) != value:
            raise WrongCombination(
                f"--node-selector {key}={value}: another option wants {key}={made[key]}, and a node has one of them; "
                f"leave one out"
            )
        made[key] = value
    return made


def one_zone(o, role):
    """(the affinity, its reason). `role`: of the pods with ranks, in a job that has others too; those may be in another
    zone."""
    term = Item(labelSelector=Map(matchLabels=selector(o, role)), topologyKey=ZONE)
    if o.locations == "zone":
        wish = Map(preferredDuringSchedulingIgnoredDuringExecution=[Item(weight=100, podAffinityTerm=term)])
        why = "Pods run in one zone where that is possible; where it is not, ranks know the zones."
        return Map(podAffinity=wish), why
    why = "All pods run in one zone: traffic between zones is slower and is charged."
    return Map(podAffinity=Map(requiredDuringSchedulingIgnoredDuringExecution=[term])), why
