"""Decides how many replicas an autoscaling/v2 HPA with one Pods metric wants, as its controller does. Pure."""

import math
from dataclasses import dataclass, field

TOLERANCE = 0.1  # the controller's default
LONGEST_S = 3600  # that a window or a period may last


def amount_of(text):
    """A quantity such as 800m or 50."""
    return float(text[:-1]) / 1000 if str(text).endswith("m") else float(text)


@dataclass
class HpaState:
    """The recommendations and changes that the stabilization windows and policies look back at."""

    spec: dict
    recommended: list = field(default_factory=list)  # (time, replicas)
    changed: list = field(default_factory=list)  # (time, difference)

    def decide(self, now, replicas, values):
        """The new number of replicas. `values`: the metric of each pod that has one."""
        target = amount_of(self.spec["metrics"][0]["pods"]["target"]["averageValue"])
        wanted = replicas
        if values:
            ratio = sum(values) / len(values) / target
            if abs(ratio - 1) > TOLERANCE:
                wanted = math.ceil(replicas * ratio)
        wanted = max(self.spec.get("minReplicas", 1), min(self.spec["maxReplicas"], wanted))
        self.recommended = [one for one in self.recommended if now - one[0] <= LONGEST_S] + [(now, wanted)]
        self.changed = [one for one in self.changed if now - one[0] <= LONGEST_S]
        wanted = self._stable(now, replicas, wanted)
        wanted = self._paced(now, replicas, wanted)
        if wanted != replicas:
            self.changed.append((now, wanted - replicas))
        return wanted

    def _stable(self, now, replicas, wanted):
        """Up: the least recommendation of the window; down: the greatest of its own."""
        behavior = self.spec.get("behavior", {})
        up = behavior.get("scaleUp", {}).get("stabilizationWindowSeconds", 0)
        down = behavior.get("scaleDown", {}).get("stabilizationWindowSeconds", 300)
        least = min(count for at, count in self.recommended if now - at <= up)
        most = max(count for at, count in self.recommended if now - at <= down)
        return min(most, max(least, replicas)) if wanted >= replicas else max(least, min(most, replicas))

    def _paced(self, now, replicas, wanted):
        """No more pods than each policy allows within its period."""
        part = "scaleUp" if wanted > replicas else "scaleDown"
        for policy in self.spec.get("behavior", {}).get(part, {}).get("policies", []):
            done = sum(
                abs(by)
                for at, by in self.changed
                if now - at < policy["periodSeconds"] and (by > 0) == (wanted > replicas)
            )
            room = max(0, policy["value"] - done)
            wanted = min(wanted, replicas + room) if wanted > replicas else max(wanted, replicas - room)
        return wanted
