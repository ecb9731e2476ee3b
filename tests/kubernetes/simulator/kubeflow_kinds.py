"""The pods of PyTorchJobs and TFJobs, as the training operator makes them, and of TrainJobs, as the trainer does."""

import copy
import json

from kubernetes_kinds import job_set
from mpi_operator import add_hosts
from pod_plans import Workload, meta_of, plan_of, variables


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
    return plan_of(
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
    name, namespace = meta_of(document)
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
    name, namespace = meta_of(document)
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
    name, namespace = meta_of(document)
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
        add_hosts(workload.pods, "OpenMPI", hosts, slots, policy["mpi"].get("sshAuthMountPath", "/root/.ssh"))
        workload.decides = "launcher"
        for pod in workload.pods:
            if pod.labels["jobset.sigs.k8s.io/replicatedjob-name"] == "launcher":
                pod.role = "launcher"
    return workload
