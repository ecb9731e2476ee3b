"""Decides on which node a pod runs, and which pods it displaces, as the scheduler of Kubernetes does. Pure.

Pods are placed by their requests, claims of devices, node selectors and priorities; affinities and taints of the
manifests do not count. Pods of a PodGroup are placed together, if they name the scheduler that reads it: Volcano's, or
that of the scheduler plugins.
"""

from collections import Counter
from dataclasses import dataclass, field

from machine import cores_of, size_of

# The API group of a PodGroup: the scheduler that reads it, and where a pod names its group.
GANGS = {
    "scheduling.volcano.sh": ("volcano", "annotations", "scheduling.k8s.io/group-name"),
    "scheduling.x-k8s.io": ("scheduler-plugins-scheduler", "labels", "scheduling.x-k8s.io/pod-group"),
}
CHANNELS = "compute-domain-default-channel.nvidia.com"  # the DeviceClass that a ComputeDomain's claims name


@dataclass
class Node:
    """`capacity`: {resource: quantity as in a manifest}, what pods may request. `devices`: {DeviceClass: number}, what
    they may claim."""

    name: str
    capacity: dict
    labels: dict = field(default_factory=dict)
    devices: dict = field(default_factory=dict)
    reachable: bool = True


def amount_of(resource, quantity):
    if resource == "cpu":
        return cores_of(quantity)
    return size_of(quantity) if resource in ("memory", "ephemeral-storage") else float(quantity)


def requests_of(spec):
    """{resource: amount}: of all containers together, and at least of each init container. Limits stand in for requests
    that are not given."""

    def of(container):
        resources = container.get("resources", {})
        wanted = {**resources.get("limits", {}), **resources.get("requests", {})}
        return {key: amount_of(key, value) for key, value in wanted.items()}

    total = {}
    for container in spec["containers"]:
        for key, amount in of(container).items():
            total[key] = total.get(key, 0) + amount
    for container in spec.get("initContainers", []):
        for key, amount in of(container).items():
            total[key] = max(total.get(key, 0), amount)
    return total


@dataclass
class Decision:
    """Where the pod goes; or why it cannot go anywhere, and the pods that are preempted for it."""

    node: str = ""
    reason: str = ""
    victims: list = field(default_factory=list)


def groups_in(documents):
    """{(scheduler, name): least number of pods} of the PodGroups."""
    groups = [one for one in documents if one["kind"] == "PodGroup"]
    schedulers = [GANGS[one["apiVersion"].partition("/")[0]][0] for one in groups]
    return {
        (scheduler, one["metadata"]["name"]): one["spec"]["minMember"] for scheduler, one in zip(schedulers, groups)
    }


def group_of(plan):
    """(scheduler, name) of the PodGroup that the pod's scheduler reads; None if it reads none."""
    for scheduler, where, key in GANGS.values():
        if plan.template.get("schedulerName") == scheduler and key in getattr(plan, where):
            return scheduler, getattr(plan, where)[key]
    return None


def claims_in(documents):
    """{name of a ResourceClaimTemplate: Counter of the devices of each class}. A ComputeDomain makes its template
    itself."""
    made = {}
    for one in documents:
        if one["kind"] == "ResourceClaimTemplate":
            requests = [request["exactly"] for request in one["spec"]["spec"]["devices"]["requests"]]
            made[one["metadata"]["name"]] = sum(
                (Counter({each["deviceClassName"]: each.get("count", 1)}) for each in requests), Counter()
            )
        elif one["kind"] == "ComputeDomain":
            made[one["spec"]["channel"]["resourceClaimTemplate"]["name"]] = Counter({CHANNELS: 1})
    return made


def domains_in(documents):
    """{name of the ResourceClaimTemplate of a ComputeDomain: the nodes on which it begins}."""
    specs = [one["spec"] for one in documents if one["kind"] == "ComputeDomain"]
    return {spec["channel"]["resourceClaimTemplate"]["name"]: spec["numNodes"] for spec in specs}


def templates_of(spec):
    """The names of the ResourceClaimTemplates of a pod."""
    return [one["resourceClaimTemplateName"] for one in spec.get("resourceClaims", [])]


class Scheduler:
    """`documents`: PriorityClasses, PodGroups, ResourceClaimTemplates and ComputeDomains; others do not count."""

    def __init__(self, nodes, documents=()):
        self.nodes = {one.name: one for one in nodes}
        self.classes = {one["metadata"]["name"]: one["value"] for one in documents if one["kind"] == "PriorityClass"}
        self.groups, self.templates = groups_in(documents), claims_in(documents)
        self.domains = domains_in(documents)

    def priority_of(self, spec):
        return spec.get("priority", self.classes.get(spec.get("priorityClassName", ""), 0))

    def schedule(self, waiting, running, begun=()):
        """Yields (pod, Decision) for the pods that wait, in the order of priority and age.

        `waiting`: [(pod, its plan)]. `running`: [(pod, its spec, its node's name)] of the pods that have one.
        `begun`: the group, or None, of each pod that runs or has succeeded.
        """
        begun, groups = Counter(begun), {}
        for pod, plan in sorted(waiting, key=lambda one: -self.priority_of(one[1].template)):
            group = group_of(plan)
            groups.setdefault(group or id(pod), (group, []))[1].append((pod, plan))
        for group, members in groups.values():
            decisions, taken = [], list(running)
            for pod, plan in members:
                decisions.append((pod, self.place(plan.template, taken)))
                if decisions[-1][1].node:
                    taken.append((pod, plan.template, decisions[-1][1].node))
            why = self._is_not_ready(group, begun[group] + len(taken) - len(running))
            if why:
                decisions = [(pod, Decision(reason=f"{why} {one.reason}".rstrip())) for pod, one in decisions]
            else:
                running = taken
            yield from decisions

    def _is_not_ready(self, group, count):
        """Why no pod of a group may run of which `count` pods can; empty if they may."""
        if group is None or count >= self.groups.get(group, count + 1):
            return ""
        if group not in self.groups:
            return f"pod group {group[1]} does not exist."
        return f"pod group {group[1]} is not ready: {count} of {self.groups[group]} pods can run."

    def place(self, spec, running):
        """`running`: as of schedule()."""
        unknown = [name for name in templates_of(spec) if name not in self.templates]
        if unknown:
            return Decision(reason=f"waiting for a claim: there is no ResourceClaimTemplate {unknown[0]}.")
        missing, best = {}, None
        for node in self.nodes.values():
            if not node.reachable:
                why = ["node(s) had untolerated taint {node.kubernetes.io/unreachable: }"]
            elif not spec.get("nodeSelector", {}).items() <= node.labels.items():
                why = ["node(s) didn't match Pod's node affinity/selector"]
            else:
                here = [one for one in running if one[2] == node.name]
                why = self._lacks(node, spec, [one[1] for one in here])
                if not why and (best is None or len(here) < best[0]):
                    best = (len(here), node.name)
            for one in why:
                missing[one] = missing.get(one, 0) + 1
        if best:
            return Decision(node=best[1])
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(missing.items()))
        return Decision(reason=f"0/{len(self.nodes)} nodes are available: {reasons}.",
                        victims=self._victims(spec, running))  # fmt: skip

    def _lacks(self, node, spec, here):
        """What the node lacks: a resource, or devices of a claim."""
        taken, claimed = Counter(), Counter()
        for other in here:
            taken.update(requests_of(other))
            claimed.update(self._devices_of(other))
        short = [
            f"Insufficient {key}"
            for key, amount in requests_of(spec).items()
            if amount > 0 and taken[key] + amount > amount_of(key, node.capacity.get(key, 0)) + 1e-9
        ]
        wanted = self._devices_of(spec)
        if any(claimed[key] + count > node.devices.get(key, 0) for key, count in wanted.items()):
            short.append("cannot allocate all claims")
        return short

    def _devices_of(self, spec):
        return sum((self.templates.get(name, Counter()) for name in templates_of(spec)), Counter())

    def domain_lacks_nodes(self, spec, running):
        """Whether the pod's ComputeDomain has too few nodes to begin. `running`: as of schedule()."""
        for name in set(templates_of(spec)) & self.domains.keys():
            nodes = {node for _, other, node in running if name in templates_of(other)}
            if len(nodes) < self.domains[name]:
                return True
        return False

    def _victims(self, spec, running):
        """The fewest pods of one node whose priorities are lower, those of the lowest first."""
        if spec.get("preemptionPolicy") == "Never":
            return []
        best = []
        for node in self.nodes.values():
            if not node.reachable or not spec.get("nodeSelector", {}).items() <= node.labels.items():
                continue
            here = [one for one in running if one[2] == node.name]
            lower = sorted((one for one in here if self.priority_of(one[1]) < self.priority_of(spec)),
                           key=lambda one: self.priority_of(one[1]))  # fmt: skip
            for count in range(1, len(lower) + 1):
                rest = [one[1] for one in here if all(one is not gone for gone in lower[:count])]
                if not self._lacks(node, spec, rest):
                    if not best or count < len(best):
                        best = [one[0] for one in lower[:count]]
                    break
        return best
