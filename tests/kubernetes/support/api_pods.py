"""Pods as the API server returns them."""


def pod(index, *, code=None, reason="", waiting=None, unscheduled=None, name=None, labels=None, made="1"):
    """A pod as returned by the API server."""
    state = {"running": {}}
    phase = "Running"
    if code is not None:
        state, phase = {"terminated": {"exitCode": code, "reason": reason}}, "Failed" if code else "Succeeded"
    if waiting:
        state, phase = {"waiting": waiting}, "Pending"
    status = {"phase": phase, "containerStatuses": [{"state": state}]}
    if unscheduled:
        status = {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": unscheduled}],
        }
    labels = {"batch.kubernetes.io/job-completion-index": str(index)} if labels is None else labels
    return {
        "metadata": {"name": name or f"train-{index}-x{made}", "labels": labels, "creationTimestamp": made},
        "spec": {"nodeName": f"node-{index}"},
        "status": status,
    }


def with_sidecar(pod, name, state, first=False):
    """The pod with a second container, as an injector or an operator adds it. The API server sorts statuses by name."""
    spec, status = pod["spec"], pod["status"]
    status["containerStatuses"][0].setdefault("name", "trainer")
    added = [{"name": name}]
    spec["containers"] = added + [{"name": "trainer"}] if first else [{"name": "trainer"}] + added
    if first:
        pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "trainer"}
    status["containerStatuses"] = sorted(
        [*status["containerStatuses"], {"name": name, "state": state}], key=lambda one: one["name"]
    )
    return pod
