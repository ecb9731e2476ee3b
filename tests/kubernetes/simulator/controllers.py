"""Computes the pods of a workload, with the names, labels, variables and host names that its controller assigns.

The functions are pure: they turn manifests into PodPlans. The rules restate those of Kubernetes (Job, StatefulSet,
Deployment), JobSet, LeaderWorkerSet, the training operator (PyTorchJob, TFJob), the trainer (TrainJob) and the MPI
operator.
"""

import copy
import hashlib
import json
import uuid
from dataclasses import dataclass, field

from fabric import CLUSTER


@dataclass
class PodPlan:
    """One pod as its controller would create it. `stem` is its name; with `random` the controller adds a random
    suffix."""

    stem: str
    template: dict  # the pod's spec
    labels: dict
    annotations: dict = field(default_factory=dict)
    env: list = field(default_factory=list)  # variables that the controller adds to every container
    hostname: str = ""  # empty: the pod's name
    subdomain: str = ""
    namespace: str = "default"
    random: bool = False
    index: int = 0
    role: str = ""  # replica type: Master, Worker, launcher...
    restart: str = "Always"
    exit_codes: bool = False  # its controller replaces it after codes from 128 on; other codes are final
    waits_for: str = ""  # a host name that an init container of the controller resolves first
    default_command: tuple = ()  # instead of the image's own
    files: dict = field(default_factory=dict)  # path -> (text, mode): files that the controller mounts
    with_service: bool = False  # the controller makes a headless service of this pod's name


@dataclass
class Workload:
    """The pods of one object, and the rules by which failed ones are replaced."""

    kind: str
    name: str
    namespace: str
    pods: list
    services: list = field(default_factory=list)  # (name, selector labels, publish not ready): headless services
    job: dict = field(default_factory=dict)  # a Job's spec, for job_rules
    decides: str = ""  # the role whose success ends it; empty: all pods
    first_decides: bool = False  # the first pod that succeeds ends it
    in_order: bool = False  # the next pod starts when the one before is ready
    recreate_all: bool = False  # after the loss of a pod its whole group is recreated
    max_restarts: int = 0  # of all pods together


def _meta(document):
    meta = document.get("metadata", {})
    return meta.get("name", ""), meta.get("namespace", "default")


def _plan(stem, template, namespace, labels, **more):
    meta, spec = template.get("metadata", {}), copy.deepcopy(template["spec"])
    more.setdefault("hostname", spec.get("hostname", ""))
    more.setdefault("subdomain", spec.get("subdomain", ""))
    more.setdefault("restart", spec.get("restartPolicy", "Always"))
    annotations = {**meta.get("annotations", {}), **more.pop("annotations", {})}
    return PodPlan(stem, spec, {**meta.get("labels", {}), **labels}, annotations, namespace=namespace, **more)


def uid_of(*words):
    """A uid in the usual format; here it is the same for the same object."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(words)))


def variables(**pairs):
    return [{"name": name, "value": str(value)} for name, value in pairs.items()]


# ---- Kubernetes itself -----------------------------------------------------------------------------------------------


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
            _plan(
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
    name, namespace = _meta(document)
    spec = document["spec"]
    return Workload("Job", name, namespace, job_pods(name, namespace, spec), job=spec)


def stateful_set(document, _):
    name, namespace = _meta(document)
    spec = document["spec"]
    first = spec.get("ordinals", {}).get("start", 0)
    pods = []
    for ordinal in range(first, first + spec.get("replicas", 1)):
        own = f"{name}-{ordinal}"
        labels = {"apps.kubernetes.io/pod-index": str(ordinal), "statefulset.kubernetes.io/pod-name": own}
        pods.append(_plan(own, spec["template"], namespace, labels, hostname=own, subdomain=spec.get("serviceName", ""),
                          index=ordinal, restart="Always"))  # fmt: skip
    return Workload("StatefulSet", name, namespace, pods,
                    in_order=spec.get("podManagementPolicy", "OrderedReady") == "OrderedReady")  # fmt: skip


def deployment(document, _):
    name, namespace = _meta(document)
    spec = document["spec"]
    pods = [_plan(f"{name}-7d9c6b5f4", spec["template"], namespace, {"pod-template-hash": "7d9c6b5f4"}, random=True,
                  index=index, restart="Always") for index in range(spec.get("replicas", 1))]  # fmt: skip
    return Workload("Deployment", name, namespace, pods)


# ---- JobSet, LeaderWorkerSet -----------------------------------------------------------------------------------------


def job_set(document, _):
    name, namespace = _meta(document)
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
    name, namespace = _meta(document)
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
            pods.append(_plan(own, template or group["workerTemplate"], namespace,
                              {prefix + key: str(value) for key, value in labels.items()}, env=env, hostname=own,
                              subdomain=name, index=index, restart="Always"))  # fmt: skip
    return Workload("LeaderWorkerSet", name, namespace, pods, services=[(name, {prefix + "name": name}, True)],
                    recreate_all=group.get("restartPolicy", "RecreateGroupOnPodRestart") != "None")  # fmt: skip


# ---- The training operator -------------------------------------------------------------------------------------------


def _replicas(specs, order):
    """Yields (type, index, replica spec) in the operator's order of types."""
    for kind in sorted(specs, key=lambda one: order.index(one) if one in order else len(order)):
        for index in range(specs[kind].get("replicas", 1)):
            yield kind, index, specs[kind]


def _port(template, container, wanted, default):
    for one in template["spec"]["containers"]:
        if one["name"] == container:
            for port in one.get("ports", []):
                if port.get("name") == wanted:
                    return port["containerPort"]
    return default


def _operator_pod(name, namespace, kind, index, replica, env, **more):
    own = f"{name}-{kind.lower()}-{index}"
    labels = {
        "training.kubeflow.org/job-name": name,
        "training.kubeflow.org/replica-type": kind.lower(),
        "training.kubeflow.org/replica-index": str(index),
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
    }
    if kind in ("Master", "Chief"):
        labels["training.kubeflow.org/job-role"] = "master"
    restart = replica.get("restartPolicy", "OnFailure")
    return _plan(
        own,
        replica["template"],
        namespace,
        labels,
        env=env,
        hostname=own,
        index=index,
        role=kind,
        restart="Never" if restart == "ExitCode" else restart,
        exit_codes=restart == "ExitCode",
        with_service=True,
        **more,
    )


def pytorch_job(document, _):
    name, namespace = _meta(document)
    spec = document["spec"]
    specs = spec["pytorchReplicaSpecs"]
    total = sum(one.get("replicas", 1) for one in specs.values())
    per_node = str(spec.get("nprocPerNode", "auto"))
    elastic = spec.get("elasticPolicy")
    first = specs.get("Master") or specs["Worker"]
    port = _port(first["template"], "pytorch", "pytorchjob-port", 23456)
    pods = []
    for kind, index, replica in _replicas(specs, ["Master", "Worker"]):
        common = variables(PYTHONUNBUFFERED=1)
        if elastic is None:
            rank = index if kind == "Master" or "Master" not in specs else index + 1
            world = total * (int(per_node) if per_node.isdigit() else 1)
            master = f"{name}-master-0" if "Master" in specs else f"{name}-worker-0"
            common += variables(MASTER_PORT=port, PET_MASTER_PORT=port, MASTER_ADDR=master, PET_MASTER_ADDR=master,
                                WORLD_SIZE=world, RANK=rank, PET_NODE_RANK=rank, PET_NPROC_PER_NODE=per_node,
                                PET_NNODES=total)  # fmt: skip
            waits = master if kind == "Worker" and "Master" in specs else ""
        else:
            fewest, most = elastic.get("minReplicas", total), elastic.get("maxReplicas", total)
            common += variables(
                PET_RDZV_BACKEND=elastic.get("rdzvBackend", "c10d"),
                PET_NNODES=f"{fewest}:{most}",
                PET_RDZV_ENDPOINT=f"{elastic.get('rdzvHost', name + '-worker-0')}:{elastic.get('rdzvPort', port)}",
                PET_RDZV_ID=elastic.get("rdzvId", name),
                PET_NPROC_PER_NODE=per_node,
                PET_MAX_RESTARTS=elastic.get("maxRestarts", 10),
            )
            waits = ""
        pods.append(_operator_pod(name, namespace, kind, index, replica, common, waits_for=waits))
    return Workload(
        "PyTorchJob",
        name,
        namespace,
        pods,
        decides="Master" if "Master" in specs else "",
        first_decides=elastic is not None,
    )


TF_ORDER = ["Chief", "Master", "PS", "Worker", "Evaluator"]


def tf_job(document, _):
    name, namespace = _meta(document)
    specs = document["spec"]["tfReplicaSpecs"]
    sparse = document["spec"].get("enableDynamicWorker", False)
    cluster = {}
    for kind, index, replica in _replicas(specs, TF_ORDER):
        if kind == "Evaluator":
            continue
        port = _port(replica["template"], "tensorflow", "tfjob-port", 2222)
        cluster.setdefault(kind.lower(), []).append(f"{name}-{kind.lower()}-{index}.{namespace}.svc:{port}")
    several = sum(one.get("replicas", 1) for one in specs.values()) > 1
    pods = []
    for kind, index, replica in _replicas(specs, TF_ORDER):
        task = {"type": kind.lower(), "index": index}
        if sparse:
            seen = {
                "ps": cluster.get("ps", []),
                "worker": {str(index): cluster["worker"][index]} if kind == "Worker" else {},
            }
            text = json.dumps({"sparseCluster": seen, "task": task})
        else:
            text = json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})
        pods.append(_operator_pod(name, namespace, kind, index, replica, variables(TF_CONFIG=text) if several else []))
    decides = next((kind for kind in ("Chief", "Master") if kind in specs), "Worker")
    return Workload("TFJob", name, namespace, pods, decides=decides)


# ---- The trainer -----------------------------------------------------------------------------------------------------


def _cores(resources):
    for kind in ("limits", "requests"):
        if any(key.endswith("/gpu") for key in resources.get(kind, {})):
            return "auto"
    for kind in ("limits", "requests"):
        value = str(resources.get(kind, {}).get("cpu", ""))
        if value:
            return str(max(1, int(value[:-1]) // 1000 if value.endswith("m") else int(float(value))))
    return "auto"


def _merge_env(container, env):
    names = {one["name"] for one in env}
    container["env"] = [one for one in container.get("env", []) if one["name"] not in names] + env


def train_job(document, documents):
    name, namespace = _meta(document)
    spec = document["spec"]
    reference = spec["runtimeRef"]
    runtime = next((one for one in documents if one["kind"] == reference.get("kind", "ClusterTrainingRuntime")
                    and one["metadata"]["name"] == reference["name"]), None)  # fmt: skip
    if runtime is None:
        raise ValueError(f"TrainJob {name}: its runtime {reference['name']} is in none of the manifests")
    policy = runtime["spec"].get("mlPolicy", {})
    trainer = spec.get("trainer", {})
    nodes = trainer.get("numNodes", policy.get("numNodes", 1))
    jobs = copy.deepcopy(runtime["spec"]["template"]["spec"])
    for replicated in jobs["replicatedJobs"]:
        template = replicated["template"]
        step = template.get("metadata", {}).get("labels", {}).get("trainer.kubeflow.org/trainjob-ancestor-step")
        job_spec = template["spec"]
        if step != "trainer" and replicated["name"] != "node":
            continue
        job_spec.update(parallelism=nodes, completions=nodes, completionMode="Indexed")
        container = next(one for one in job_spec["template"]["spec"]["containers"] if one["name"] == "node")
        for key in ("command", "args", "image"):
            if key in trainer:
                container[key] = trainer[key]
        if "resourcesPerNode" in trainer:
            merged = container.setdefault("resources", {})
            for key, value in trainer["resourcesPerNode"].items():
                merged[key] = {**merged.get(key, {}), **value}
        _merge_env(container, trainer.get("env", []))
        if "torch" in policy:
            per_node = str(trainer.get("numProcPerNode", policy["torch"].get("numProcPerNode", "auto")))
            if per_node == "auto":
                per_node = _cores(container.get("resources", {}))
            index = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {
                "fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}}  # fmt: skip
            _merge_env(container, variables(PET_NNODES=nodes, PET_NPROC_PER_NODE=per_node) + [index] +
                       variables(PET_MASTER_ADDR=f"{name}-node-0-0.{name}", PET_MASTER_PORT=29500))  # fmt: skip
    made = {"kind": "JobSet", "metadata": {"name": name, "namespace": namespace}, "spec": jobs}
    workload = job_set(made, documents)
    workload.kind = "TrainJob"
    if "mpi" in policy:
        slots = trainer.get("numProcPerNode", policy["mpi"].get("numProcPerNode", 1))
        hosts = [f"{name}-node-0-{index}.{name}" for index in range(nodes)]
        _mpi(workload.pods, "OpenMPI", hosts, slots, policy["mpi"].get("sshAuthMountPath", "/root/.ssh"))
        workload.decides = "launcher"
        for pod in workload.pods:
            if pod.labels["jobset.sigs.k8s.io/replicatedjob-name"] == "launcher":
                pod.role = "launcher"
    return workload


# ---- The MPI operator ------------------------------------------------------------------------------------------------


def _mpi(pods, implementation, hosts, slots, key_folder):
    """Adds the host file and the SSH key, which every pod mounts."""
    colon = implementation in ("Intel", "MPICH")
    lines = [f"{host}:{slots}" if colon else f"{host} slots={slots}" for host in hosts]
    script = "#!/bin/sh\n" + "".join(f"echo {host}\n" for host in hosts)
    for pod in pods:
        pod.files = {
            "/etc/mpi/hostfile": ("\n".join(lines) + "\n", 0o444),
            "/etc/mpi/discover_hosts.sh": (script, 0o555),
            key_folder: ("ssh-key", 0o600),
        }


def mpi_job(document, _):
    name, namespace = _meta(document)
    spec = document["spec"]
    implementation = spec.get("mpiImplementation", "OpenMPI")
    slots, specs = spec.get("slotsPerWorker", 1), spec["mpiReplicaSpecs"]
    launcher_works = spec.get("runLauncherAsWorker", False)
    workers = specs.get("Worker", {}).get("replicas", 0)
    hosts = ([f"{name}-launcher.{name}.{namespace}.svc"] if launcher_works else []) + [
        f"{name}-worker-{index}.{name}.{namespace}.svc" for index in range(workers)]  # fmt: skip
    said = {
        "OpenMPI": variables(
            OMPI_MCA_orte_keep_fqdn_hostnames="true",
            OMPI_MCA_orte_default_hostfile="/etc/mpi/hostfile",
            OMPI_MCA_plm_rsh_args="-o ConnectionAttempts=10",
            OMPI_MCA_orte_set_default_slots=slots,
        ),
        "Intel": variables(
            I_MPI_HYDRA_HOST_FILE="/etc/mpi/hostfile",
            I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS="-o ConnectionAttempts=10",
            I_MPI_PERHOST=slots,
        ),
        "MPICH": variables(HYDRA_HOST_FILE="/etc/mpi/hostfile", HYDRA_LAUNCH_EXTRA_ARGS="-o ConnectionAttempts=10"),
    }
    pods = []
    for index in range(workers):
        own = f"{name}-worker-{index}"
        labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": "worker",
                  "training.kubeflow.org/replica-index": str(index + launcher_works)}  # fmt: skip
        pods.append(_plan(own, specs["Worker"]["template"], namespace, labels, env=variables(K_MPI_JOB_ROLE="worker"),
                          hostname=own, subdomain=name, index=index, role="Worker", restart="Never",
                          default_command=("/usr/sbin/sshd", "-De")))  # fmt: skip
        # Hydra's processes connect to the launcher by its host name.
        searches = pods[-1].template.setdefault("dnsConfig", {}).setdefault("searches", [])
        searches.append(f"{name}.{namespace}.svc.{CLUSTER}")
    labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/job-role": "launcher"}
    blank = [] if launcher_works else variables(NVIDIA_VISIBLE_DEVICES="", NVIDIA_DRIVER_CAPABILITIES="")
    pods.append(
        _plan(
            f"{name}-launcher",
            specs["Launcher"]["template"],
            namespace,
            labels,
            hostname=f"{name}-launcher",
            subdomain=name,
            env=variables(K_MPI_JOB_ROLE="launcher") + said[implementation] + blank,
            random=True,
            role="launcher",
            restart="Never",
        )
    )
    _mpi(pods, implementation, hosts, slots, spec.get("sshAuthMountPath", "/root/.ssh"))
    return Workload("MPIJob", name, namespace, pods, decides="launcher",
                    services=[(name, {"training.kubeflow.org/job-name": name}, True)],
                    in_order=spec.get("launcherCreationPolicy") == "WaitForWorkersReady")  # fmt: skip


CONTROLLERS = {
    "Job": job,
    "StatefulSet": stateful_set,
    "Deployment": deployment,
    "JobSet": job_set,
    "LeaderWorkerSet": leader_worker_set,
    "PyTorchJob": pytorch_job,
    "TFJob": tf_job,
    "TrainJob": train_job,
    "MPIJob": mpi_job,
}


def workloads(documents):
    """The workloads of these objects; a Pod is a workload of its own."""
    made = []
    for document in documents:
        if document["kind"] in CONTROLLERS:
            made.append(CONTROLLERS[document["kind"]](document, documents))
        elif document["kind"] == "Pod":
            name, namespace = _meta(document)
            pod = _plan(name, document, namespace, document["metadata"].get("labels", {}))
            made.append(Workload("Pod", name, namespace, [pod]))
    return made
