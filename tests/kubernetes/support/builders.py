"""Short descriptions of manifests for tests; each function returns documents that podsim.read() accepts."""

import copy


def resource(api_version, kind, name, **parts):
    return {"kind": kind, "apiVersion": api_version, "metadata": {"name": name}, **parts}


def key_secret(name):
    """A secret with the key of a job."""
    return resource("v1", "Secret", name, stringData={"key": "0123456789abcdef" * 2})


KEY = key_secret("job-key")
KEY_VARIABLE = {"name": "FARANDOLE_JOB_KEY", "valueFrom": {"secretKeyRef": {"name": "job-key", "key": "key"}}}
TRAIN = ["python", "/app/train_digits.py"]


def pod_spec(command, container="main", env=None, **more):
    """A pod of one container. Arguments named container_* belong to the container, the others to the pod."""
    inner = {"name": container, "image": "any", "command": list(command), "env": [KEY_VARIABLE]}
    inner["env"] += [{"name": name, "value": str(value)} for name, value in (env or {}).items()]
    for key in [key for key in more if key.startswith("container_")]:
        inner[key.removeprefix("container_")] = more.pop(key)
    return {"containers": [inner], "terminationGracePeriodSeconds": 5, **more}


def template(command, labels=None, **more):
    return {"metadata": {"labels": labels or {}}, "spec": pod_spec(command, **more)}


def service(name, selector, **more):
    return resource(
        "v1",
        "Service",
        name,
        spec={"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector, **more},
    )


def job_spec(count, command, subdomain=None, rules=None, **more):
    pod = template(command, restartPolicy="Never", **more)
    if subdomain:
        pod["spec"]["subdomain"] = subdomain
    return {"completions": count, "parallelism": count, "completionMode": "Indexed", "backoffLimit": 0, "template": pod,
            **(rules or {})}  # fmt: skip


def indexed_job(count, command, name="train", rules=None, **more):
    """An Indexed Job, and the headless service through which its pods have names."""
    made = resource("batch/v1", "Job", name, spec=job_spec(count, command, name, rules, **more))
    return [KEY, service(name, {"job-name": name}), made]


def stateful_set(count, command, name="train", spec=None, **more):
    made = resource(
        "apps/v1",
        "StatefulSet",
        name,
        spec={
            "replicas": count,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            **(spec or {}),
            "selector": {"matchLabels": {"app": name}},
            "template": template(command, {"app": name}, **more),
        },
    )
    return [KEY, service(name, {"app": name}), made]


def deployment(count, command, name="train", **more):
    made = resource(
        "apps/v1",
        "Deployment",
        name,
        spec={
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": template(command, {"app": name}, **more),
        },
    )
    return [KEY, service(name, {"app": name}), made]


def job_set(jobs, per_job, command, name="train", spec=None, **more):
    child = {"metadata": {}, "spec": job_spec(per_job, command, **more)}
    made = resource(
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        name,
        spec={"replicatedJobs": [{"name": "workers", "replicas": jobs, "template": child}], **(spec or {})},
    )
    return [KEY, made]


def leader_worker_set(size, command, name="train", group=None, **more):
    made = resource(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        name,
        spec={
            "replicas": 1,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template(command, **more), **(group or {})},
        },
    )
    return [KEY, made]


def pytorch_job(workers, command, name="train", master=True, spec=None, **more):
    replica = {"replicas": 1, "restartPolicy": "Never", "template": template(command, container="pytorch", **more)}
    specs = {"Worker": {**copy.deepcopy(replica), "replicas": workers}}
    if master:
        specs["Master"] = replica
    made = resource("kubeflow.org/v1", "PyTorchJob", name, spec={"pytorchReplicaSpecs": specs, **(spec or {})})
    return [KEY, made]


def tf_job(replicas, command, name="train", spec=None, **more):
    """`replicas`: {type: how many}."""
    inner = template(command, container="tensorflow", **more)
    specs = {
        kind: {"replicas": count, "restartPolicy": "Never", "template": copy.deepcopy(inner)}
        for kind, count in replicas.items()
    }
    made = resource("kubeflow.org/v1", "TFJob", name, spec={"tfReplicaSpecs": specs, **(spec or {})})
    return [KEY, made]


def train_job(nodes, command, name="train", policy=None, trainer=None, **more):
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": job_spec(1, command, container="node", **more)}  # fmt: skip
    runtime = resource(
        "trainer.kubeflow.org/v1alpha1",
        "ClusterTrainingRuntime",
        "farandole",
        spec={
            "mlPolicy": {"numNodes": 1, **(policy if policy is not None else {"torch": {}})},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": step}]}},
        },
    )
    made = resource(
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
        name,
        spec={"runtimeRef": {"name": "farandole"}, "trainer": {"numNodes": nodes, **(trainer or {})}},
    )
    return [KEY, runtime, made]


def mpi_job(workers, command, name="pi", slots=2, spec=None, worker=None, **more):
    launcher = {"replicas": 1, "template": template(command, container="mpi", restartPolicy="Never", **more)}
    rest = template(worker or [], container="mpi", **more)
    if worker is None:
        del rest["spec"]["containers"][0]["command"]
    made = resource(
        "kubeflow.org/v2beta1",
        "MPIJob",
        name,
        spec={
            "slotsPerWorker": slots,
            "mpiReplicaSpecs": {"Launcher": launcher, "Worker": {"replicas": workers, "template": rest}},
            **(spec or {}),
        },
    )
    return [KEY, made]
