"""Decides on which node a pod runs, and which pods it displaces, as the scheduler of Kubernetes does. Pure.

Pods are placed by their requests, node selectors and priorities; affinities and taints of the manifests do not count.
"""

from dataclasses import dataclass, field

from machine import cores_of, size_of


@dataclass
class Node:
    """`capacity`: {resource: quantity as in a manifest}, what pods may request."""

    name: str
    capacity: dict
    labels: dict = field(default_factory=dict)
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


class Scheduler:
    """`classes`: {PriorityClass: its value}."""

    def __init__(self, nodes, classes=None):
        self.nodes, self.classes = {one.name: one for one in nodes}, dict(classes or {})

    def priority_of(self, spec):
        return spec.get("priority", self.classes.get(spec.get("priorityClassName", ""), 0))

    def place(self, spec, running):
        """`running`: [(pod, its spec, its node's name)] of the pods that hold their requests."""
        missing, best = {}, None
        for node in self.nodes.values():
            if not node.reachable:
                why = ["node(s) had untolerated taint {node.kubernetes.io/unreachable: }"]
            elif not spec.get("nodeSelector", {}).items() <= node.labels.items():
                why = ["node(s) didn't match Pod's node affinity/selector"]
            else:
                here = [one for one in running if one[2] == node.name]
                why = [f"Insufficient {key}" for key in self._lacks(node, spec, [one[1] for one in here])]
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
        taken = {}
        for other in here:
            for key, amount in requests_of(other).items():
                taken[key] = taken.get(key, 0) + amount
        return [
            key
            for key, amount in requests_of(spec).items()
            if amount > 0 and taken.get(key, 0) + amount > amount_of(key, node.capacity.get(key, 0)) + 1e-9
        ]

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
