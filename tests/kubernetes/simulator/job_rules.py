"""Decides what a Job does after the end of one of its pods, as the Job controller does. Pure."""

from dataclasses import dataclass, field

DEFAULT_BACKOFF = 6
LONGEST_DELAY = 60  # of a Job's back-off, in units of its first delay: 10 min to 10 s


def indexes_of(text):
    """The indexes of "0,3-5"."""
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def succeeds_by(policy, succeeded):
    """Whether one rule of a successPolicy is met: all of its indexes, or as many of them as it counts."""
    for rule in (policy or {}).get("rules", []):
        wanted = indexes_of(rule["succeededIndexes"]) if "succeededIndexes" in rule else None
        count = len(succeeded if wanted is None else succeeded & wanted)
        if count >= rule.get("succeededCount", len(wanted) if wanted is not None else 1):
            return True
    return False


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
    """Counts ends of pods and returns the next action: 'done', 'again', 'wait' or 'failed', with `reason` set.

    `conditions` are those of the Job's status, with their reasons: SuccessCriteriaMet or FailureTarget as soon as the
    result is known, and Complete or Failed beside it when finish() reports that all of its pods have ended."""

    spec: dict
    count: int
    succeeded: set = field(default_factory=set)
    failed_indexes: set = field(default_factory=set)
    failures: int = 0
    failures_of: dict = field(default_factory=dict)
    in_a_row: int = 0  # failures since the last success, ignored ones too
    in_a_row_of: dict = field(default_factory=dict)
    reason: str = ""
    conditions: dict = field(default_factory=dict)

    def pod_ended(self, index, code, conditions=(), container="main"):
        if code == 0:  # the index has succeeded even if the pod was being deleted
            self.succeeded.add(index)
            self.in_a_row = 0
            return self._whole()
        self.in_a_row += 1
        self.in_a_row_of[index] = self.in_a_row_of.get(index, 0) + 1
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

    def delay(self, index, first):
        """Before the pod of this index is replaced: doubled with each failure in a row, of the index where limits are
        counted by index, else of the job."""
        per_index = self.spec.get("backoffLimitPerIndex") is not None
        failures = self.in_a_row_of.get(index, 0) if per_index else self.in_a_row
        return first * min(2 ** max(0, failures - 1), LONGEST_DELAY)

    def finish(self):
        for early, late in (("SuccessCriteriaMet", "Complete"), ("FailureTarget", "Failed")):
            if early in self.conditions:
                self.conditions[late] = self.conditions[early]

    def _fail_index(self, index):
        self.failed_indexes.add(index)
        most = self.spec.get("maxFailedIndexes")
        if most is not None and len(self.failed_indexes) > most:
            return self._fail("MaxFailedIndexesExceeded", f"{len(self.failed_indexes)} indexes have failed")
        return self._whole()

    def _whole(self):
        if succeeds_by(self.spec.get("successPolicy"), self.succeeded):
            return self._succeed("SuccessPolicy")
        if len(self.succeeded | self.failed_indexes) < self.count:
            return "wait"
        if self.failed_indexes:
            return self._fail("FailedIndexes", f"indexes {sorted(self.failed_indexes)} have failed")
        return self._succeed("CompletionsReached")

    def _succeed(self, reason):
        self.conditions["SuccessCriteriaMet"] = reason
        return "done"

    def _fail(self, reason, detail):
        self.reason = f"{reason}: {detail}"
        self.conditions["FailureTarget"] = reason
        return "failed"
