"""A stub of kubectl, and the pods that it returns."""

# Answers `get pods` with pods.1.json, then pods.2.json, and so on, repeats the last, and records its arguments.
STUB = """#!/bin/sh
echo "$@" >>"$STUB/calls"
case "$1 $2" in
  "get pods")
    n=$(($(cat "$STUB/count" 2>/dev/null || echo 0) + 1))
    [ -f "$STUB/pods.$n.json" ] || n=$((n - 1))
    echo $n >"$STUB/count"
    cat "$STUB/pods.$n.json" ;;
  "get events") cat "$STUB/events.json" ;;
  logs*) cat "$STUB/log.$2" ;;
  *) echo "the connection to the server was refused" >&2; exit 1 ;;
esac
"""


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
