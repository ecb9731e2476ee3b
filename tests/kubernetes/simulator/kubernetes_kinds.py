"""The pods of Jobs, StatefulSets, Deployments, JobSets and LeaderWorkerSets."""

import copy
import hashlib

from pod_plans import Workload, meta_of, plan_of, uid_of, variables


def job_pods(name, namespace, spec, labels=None, annotations=None, stem=None, subdomain=None):
    """The pods of a Job. If it is Indexed, the host name is <job>-<index>, and the pod's name has a random suffix
    too."""
    indexed = spec.get("completionMode") == "Indexed"
    parallelism = spec.get("parallelism", 1)
    count = spec.get("completions", parallelism)
    uid = uid_of("Job", namespace, name)
    base = {"batch.kubernetes.io/job-name": name, "job-name": name, "batch.kubernetes.io/controller-uid": uid,
            "controller-uid": uid, **(labels or {})}  # fmt: skip
    pods = []
    for index in range(count):
        mine = {"labels": dict(base), "annotations": dict(annotations or {}), "env": []}
        more = {}
        if indexed:
            mine["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
            mine["annotations"]["batch.kubernetes.io/job-completion-index"] = str(index)
            mine["env"] = variables(JOB_COMPLETION_INDEX=index)
            more["hostname"] = f"{stem or name}-{index}"
        if subdomain:
            more["subdomain"] = subdomain
        pods.append(
            plan_of(
                f"{name}-{index}" if indexed else name,
                spec["template"],
                namespace,
                mine["labels"],
                annotations=mine["annotations"],
                env=mine["env"],
                random=True,
                index=index,
                **more,
            )
        )
    return pods


def job(document, _):
    name, namespace = meta_of(document)
    spec = document["spec"]
    return Workload("Job", name, namespace, job_pods(name, namespace, spec), job=spec)


def stateful_set(document, _):
    name, namespace = meta_of(document)
    spec = document["spec"]
    first = spec.get("ordinals", {}).get("start", 0)
    pods = []
    for ordinal in range(first, first + spec.get("replicas", 1)):
        own = f"{name}-{ordinal}"
        labels = {"apps.kubernetes.io/pod-index": str(ordinal), "statefulset.kubernetes.io/pod-name": own}
        pods.append(plan_of(own, spec["template"], namespace, labels, hostname=own, index=ordinal, restart="Always",
                            subdomain=spec.get("serviceName", "")))  # fmt: skip
    return Workload("StatefulSet", name, namespace, pods,
                    in_order=spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady")  # fmt: skip


def deployment(document, _):
    name, namespace = meta_of(document)
    spec = document["spec"]
    pods = [plan_of(f"{name}-7d9c6b5f4", spec["template"], namespace, {"pod-template-hash": "7d9c6b5f4"}, random=True,
                  index=index, restart="Always") for index in range(spec.get("replicas", 1))]  # fmt: skip
    return Workload("Deployment", name, namespace, pods)


# ---- JobSet, LeaderWorkerSet -----------------------------------------------------------------------------------------


def job_set(document, _):
    name, namespace = meta_of(document)
    spec = document["spec"]
    network = spec.get("network", {})
    subdomain = network.get("subdomain") or name
    total = sum(one.get("replicas", 1) for one in spec["replicatedJobs"])
    coordinator = spec.get("coordinator")
    prefix = "jobset.sigs.k8s.io/"
    pods, number, jobs = [], 0, []
    for replicated in spec["replicatedJobs"]:
        for replica in range(replicated.get("replicas", 1)):
            child = f"{name}-{replicated['name']}-{replica}"
            known = {"jobset-name": name, "replicatedjob-name": replicated["name"],
                     "replicatedjob-replicas": replicated.get("replicas", 1), "job-index": replica,
                     "job-global-index": number, "global-replicas": total, "restart-attempt": 0,
                     "job-key": hashlib.sha1(f"{namespace}/{child}".encode()).hexdigest()}  # fmt: skip
            known = {prefix + key: str(value) for key, value in known.items()}
            notes = dict(known)
            if coordinator:
                notes[prefix + "coordinator"] = (
                    f"{name}-{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}-"
                    f"{coordinator.get('podIndex', 0)}.{subdomain}")  # fmt: skip
            job_spec = copy.deepcopy(replicated["template"]["spec"])
            job_spec.setdefault("completionMode", "Indexed")
            pods += job_pods(child, namespace, job_spec, known, notes, subdomain=subdomain)
            jobs.append(job_spec)
            number += 1
    for place, pod in enumerate(pods):
        pod.index = place
    return Workload(
        "JobSet",
        name,
        namespace,
        pods,
        job=jobs[0] | {"backoffLimit": jobs[0].get("backoffLimit", 6)},
        services=[(subdomain, {prefix + "jobset-name": name}, network.get("publishNotReadyAddresses", True))],
        max_restarts=spec.get("failurePolicy", {}).get("maxRestarts", 0),
        recreate_all=True,
    )


def leader_worker_set(document, _):
    name, namespace = meta_of(document)
    spec = document["spec"]
    group = spec["leaderWorkerTemplate"]
    size, prefix = group.get("size", 1), "leaderworkerset.sigs.k8s.io/"
    pods = []
    for number in range(spec.get("replicas", 1)):
        leader = f"{name}-{number}"
        for index in range(size):
            own = leader if index == 0 else f"{leader}-{index}"
            template = group.get("leaderTemplate") if index == 0 else None
            labels = {"name": name, "group-index": number, "worker-index": index, "group-key": f"{number:040x}"}
            env = variables(
                LWS_LEADER_ADDRESS=f"{leader}.{name}.{namespace}", LWS_GROUP_SIZE=size, LWS_WORKER_INDEX=index
            )
            pods.append(plan_of(own, template or group["workerTemplate"], namespace,
                              {prefix + key: str(value) for key, value in labels.items()}, env=env, hostname=own,
                              subdomain=name, index=index, restart="Always"))  # fmt: skip
    return Workload("LeaderWorkerSet", name, namespace, pods, services=[(name, {prefix + "name": name}, True)],
                    recreate_all=group.get("restartPolicy", "RecreateGroupOnPodRestart") != "None")  # fmt: skip
