"""Kinds without an operator, JobSet and LeaderWorkerSet: all pods are equal, and there is no launcher."""

from . import values
from .companions import around
from .document import Item, Map
from .gang import add_partial_admission, admits_in_part, queue_labels
from .names import COMPONENT, metadata, selector
from .pods import container, pod_metadata, pod_spec, run_command, variables

# Exit codes of `farandole run`: failures that a retry cannot cure, and failures that another rank caused.
PERMANENT = [2, 64, 70, 78]
COLLATERAL = [202, 203]


def nodes_text(o):
    return f"{o.min_nodes}:{o.max_nodes}" if o.elastic else str(o.max_nodes)


def failure_policy():
    return Map(
        rules=[
            Item(
                action="Ignore",
                onPodConditions=[Item(type="DisruptionTarget", status="True")],
                why="Spot, drained nodes and preemption are not failures of the job and are not counted.",
            ),
            Item(
                action="FailJob",
                onExitCodes=Map(operator="In", values=PERMANENT),
                why="Wrong usage, bad configuration or a bug: a retry would fail again.",
            ),
            Item(
                action="Ignore",
                onExitCodes=Map(operator="In", values=COLLATERAL),
                why="Another rank was lost; its pod is counted, and not this one.",
            ),
        ]
    )


def job_set_failure_policy(o):
    """Of a JobSet, also of the one that Trainer makes. Without a rule it is restarted for every reason."""
    permanent = Item(
        name="permanent",
        action="FailJobSet",
        onJobFailureReasons=["PodFailurePolicy", "DeadlineExceeded"],
        why="A restart would fail again, and after --max-runtime it would have the whole time again.",
    )
    return Map(maxRestarts=o.max_restarts, rules=[permanent])


def template(o, spec, has_ranks=True, **labels):
    return Map(metadata=pod_metadata(o, has_ranks, **labels), spec=spec)


def indexed_job_spec(o, rendezvous, subdomain, backoff, name="trainer"):
    """The spec of an Indexed Job, alone or in a JobSet."""
    made = Map(completionMode="Indexed", completions=o.max_nodes, parallelism=o.max_nodes)
    made.note("completionMode", "All pods form one world. With parallelism alone, each pod would form its own.")
    if o.elastic:
        made.add("backoffLimitPerIndex", backoff, "An elastic job continues while one index is retried.")
        if not admits_in_part(o):  # Kueue lowers completions, and the API server refuses less than maxFailedIndexes
            made["maxFailedIndexes"] = o.max_nodes - o.min_nodes
        made.add(
            "successPolicy",
            Map(rules=[Item(succeededCount=1)]),
            "Pods end with 0 when all ranks of all pods have finished: with the first one the job is Complete. Any pod "
            "may be missing then, also pod 0. Without this rule pods that are scheduled later would still have to "
            "succeed, and would hold their nodes (Kubernetes 1.31).",
        )
    else:
        made["backoffLimit"] = backoff
    made.add(
        "podReplacementPolicy",
        "Failed",
        "A pod is replaced only after it has ended, so that two pods never claim one rank.",
    )
    made["podFailurePolicy"] = failure_policy()
    made.add("activeDeadlineSeconds", values.seconds(o.max_runtime) if o.max_runtime else None)
    made.add("ttlSecondsAfterFinished", o.ttl if o.kind == "job" else None)
    made.add("suspend", True if o.queue and o.kind == "job" else None, "Kueue starts it.")
    command = run_command(o, rendezvous, "$(FARANDOLE_NNODES)")
    box = container(o, name, command, variables(o, nodes_text(o)))
    made["template"] = template(o, pod_spec(o, [box], subdomain=subdomain))
    return made


def _top(kind, api, o, spec):
    return Item(apiVersion=api, kind=kind, metadata=metadata(o, **queue_labels(o)), spec=spec)


def job(o):
    before, after = around(o)
    spec = indexed_job_spec(o, f"{o.name}-0.{o.name}:{o.port_base}", o.name, o.max_restarts)
    made = _top("Job", "batch/v1", o, spec)
    add_partial_admission(o, made)
    return [*before, made, *after]


def jobset(o):
    spec = Map(network=Map(enableDNSHostnames=True, subdomain=o.name, publishNotReadyAddresses=True))
    spec["failurePolicy"] = job_set_failure_policy(o)
    spec.add("ttlSecondsAfterFinished", o.ttl)
    spec.add("suspend", True if o.queue else None, "Kueue starts it.")
    # The JobSet restarts all pods together, so the Job inside gives up at its first failure.
    inner = indexed_job_spec(o, f"{o.name}-node-0-0.{o.name}:{o.port_base}", None, 0)
    inner.note("backoffLimit", "The JobSet restarts all pods together, so its Job fails at the first failure.")
    spec["replicatedJobs"] = [Item(name="node", replicas=1, template=Map(spec=inner))]
    before, after = around(o, service=False)
    return [*before, _top("JobSet", "jobset.x-k8s.io/v1alpha2", o, spec), *after]


def statefulset(o):
    command = run_command(o, f"{o.name}-0.{o.name}:{o.port_base}", "$(FARANDOLE_NNODES)")
    box = container(o, "trainer", command, variables(o, nodes_text(o), rank_from="hostname"))
    spec = Map(serviceName=o.name, replicas=o.max_nodes, podManagementPolicy="Parallel")
    spec.note(
        "podManagementPolicy", "All pods start at once. In order, pod 1 would wait for pod 0, which waits for pod 1."
    )
    spec["updateStrategy"] = Map(type="OnDelete")
    spec["selector"] = Map(matchLabels=selector(o))
    spec["template"] = template(o, pod_spec(o, [box], restart="Always"))
    spec.note("template", "A StatefulSet restarts pods that have ended; for a job that finishes use `gen job`.")
    before, after = around(o)
    return [*before, _top("StatefulSet", "apps/v1", o, spec), *after]


def deployment(o):
    """Two Deployments: the pod that leads at the beginning, and the others, numbered in order of arrival. The Service
    has the addresses of all, so that each of them can be found when it has taken over."""
    before, after = around(o)
    leader = _role(o, "leader", 1, ["--node-rank", "0"])
    leader["spec"].note(
        "replicas", "This pod leads. If it is lost another one takes over, and its successor joins the job."
    )
    leader["spec"]["strategy"] = Map(type="Recreate")
    workers = _role(o, "worker", o.max_nodes - 1)
    workers["spec"].note("replicas", "The other pods are numbered in order of arrival. An HPA scales them.")
    workers["spec"]["strategy"] = Map(type="RollingUpdate", rollingUpdate=Map(maxSurge=0, maxUnavailable=1))
    return [*before, leader, *([workers] if o.max_nodes > 1 else []), *after]


def _role(o, role, replicas, place=()):
    command = run_command(o, f"dns://{o.name}:{o.port_base}", "$(FARANDOLE_NNODES)", place=place)
    box = container(o, "trainer", command, variables(o, nodes_text(o)))
    spec = Map(replicas=replicas)
    spec["selector"] = Map(matchLabels=selector(o, role))
    spec["template"] = Map(metadata=pod_metadata(o, **{COMPONENT: role}), spec=pod_spec(o, [box], restart="Always"))
    made = _top("Deployment", "apps/v1", o, spec)
    if role == "leader":
        made["metadata"]["name"] = f"{o.name}-leader"
    return made


def lws(o):
    command = run_command(o, f"$(LWS_LEADER_ADDRESS):{o.port_base}")
    box = container(o, "trainer", command, variables(o))
    spec = Map(
        replicas=1,
        leaderWorkerTemplate=Map(
            size=o.max_nodes,
            restartPolicy="RecreateGroupOnPodRestart",
            workerTemplate=template(o, pod_spec(o, [box], restart="Always")),
        ),
    )
    spec.note(
        "leaderWorkerTemplate",
        "LWS_WORKER_INDEX and LWS_GROUP_SIZE number the pods. A group that has ended "
        "is restarted; for a job that finishes use `gen job`.",
    )
    spec["rolloutStrategy"] = Map(type="RollingUpdate", rollingUpdateConfiguration=Map(maxUnavailable=1, maxSurge=0))
    before, after = around(o, service=False)
    return [*before, _top("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", o, spec), *after]
