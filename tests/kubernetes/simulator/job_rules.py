"""Decides what a Job does after the end of one of its pods, as the Job controller does. Pure."""

from dataclasses import dataclass, field

DEFAULT_BACKOFF = 6


def action_of_policy(policy, code, conditions, container="main"):
    """The action of the first rule that matches: FailJob, FailIndex, Ignore or Count. None if no rule matches."""
    for rule in (policy or {}).get("rules", []):
        codes = rule.get("onExitCodes")
        if codes is not None and code != 0:
            named = codes.get("containerName") in (None, container)
            if named and (code in codes["values"]) == (codes["operator"] == "In"):
                return rule["action"]
        for wanted in rule.get("onPodConditions", []):
            if wanted["type"] in conditions and wanted.get("status", "True") == "True":
                return rule["action"]
    return None


@dataclass
class JobState:
    """Counts ends of pods and returns the next action: 'done', 'again', 'wait' or 'failed', with `reason` set."""

    spec: dict
    count: int
    succeeded: set = field(default_factory=set)
    failed_indexes: set = field(default_factory=set)
    failures: int = 0
    failures_of: dict = field(default_factory=dict)
    reason: str = ""

    def pod_ended(self, index, code, conditions=(), container="main"):
        if code == 0:  # the index has succeeded even if the pod was being deleted
            self.succeeded.add(index)
            return self._whole()
        action = action_of_policy(self.spec.get("podFailurePolicy"), code, conditions, container)
        if action == "FailJob":
            return self._fail("PodFailurePolicy", f"index {index} ended with {code}")
        if action == "Ignore":
            return "again"
        per_index = self.spec.get("backoffLimitPerIndex")
        if action == "FailIndex" and per_index is not None:
            return self._fail_index(index)
        self.failures += 1
        self.failures_of[index] = self.failures_of.get(index, 0) + 1
        if per_index is not None:
            return self._fail_index(index) if self.failures_of[index] > per_index else "again"
        if self.failures > self.spec.get("backoffLimit", DEFAULT_BACKOFF):
            return self._fail("BackoffLimitExceeded", f"index {index} ended with {code}")
        return "again"

    def _fail_index(self, index):
        self.failed_indexes.add(index)
        most = self.spec.get("maxFailedIndexes")
        if most is not None and len(self.failed_indexes) > most:
            return self._fail("MaxFailedIndexesExceeded", f"{len(self.failed_indexes)} indexes have failed")
        return self._whole()

    def _whole(self):
        if len(self.succeeded | self.failed_indexes) < self.count:
            return "wait"
        if self.failed_indexes:
            return self._fail("FailedIndexes", f"indexes {sorted(self.failed_indexes)} have failed")
        return "done"

    def _fail(self, reason, detail):
        self.reason = f"{reason}: {detail}"
        return "failed"
