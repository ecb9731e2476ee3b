"""Checks of manifests that need no schema: names, quantities, duplicates, mounts and required fields."""

from . import values

VERSIONS = {
    "Service": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "PersistentVolume": "v1",
    "ConfigMap": "v1",
    "Pod": "v1",
    "Namespace": "v1",
    "Secret": "v1",
    "Job": "batch/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "ClusterRole": "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "StorageClass": "storage.k8s.io/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
    "MPIJob": "kubeflow.org/v2beta1",
    "PyTorchJob": "kubeflow.org/v1",
    "TFJob": "kubeflow.org/v1",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "ClusterTrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "TrainingRuntime": "trainer.kubeflow.org/v1alpha1",
    "Experiment": "kubeflow.org/v1beta1",
    "PodGroup": ("scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"),
    "RayJob": "ray.io/v1",
    "RayCluster": "ray.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "ComputeDomain": "resource.nvidia.com/v1beta1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "NodePool": "karpenter.sh/v1",
    "ClusterPolicy": "nvidia.com/v1",
    "EC2NodeClass": "karpenter.k8s.aws/v1",
    "ClusterConfig": "eksctl.io/v1alpha5",
}
_WITHOUT_NAMESPACE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "ClusterTrainingRuntime",
    "NodePool",
    "ClusterPolicy",
    "EC2NodeClass",
    "Namespace",
    "PersistentVolume",
    "StorageClass",
    "ClusterConfig",
}


def faults(documents):
    """One line for each error, with the object's kind and name; an empty list if there is none."""
    found = []
    seen = set()
    for document in documents:
        kind, name = document.get("kind"), document.get("metadata", {}).get("name")
        where = f"{kind} {name}"
        if (kind, name) in seen:
            found.append(f"{where}: stands there twice")
        seen.add((kind, name))
        for fault in [*_head(document), *_inside(document, "")]:
            found.append(f"{where}: {fault}")
        found += [f"{where}: {fault}" for fault in _rules(document)]
    return found


def _head(document):
    kind = document.get("kind")
    if kind not in VERSIONS:
        yield f"kind {kind!r} is not known here"
    elif document.get("apiVersion") not in (
        known := VERSIONS[kind] if isinstance(VERSIONS[kind], tuple) else (VERSIONS[kind],)
    ):
        yield f"apiVersion is {document.get('apiVersion')!r} and must be {' or '.join(known)}"
    metadata = document.get("metadata", {})
    if not isinstance(metadata.get("name"), str) or values.fault_of_name(metadata["name"].replace(".", "-"), 253):
        yield f"metadata.name {metadata.get('name')!r} is no name"
    if "namespace" in metadata and kind in _WITHOUT_NAMESPACE:
        yield "belongs to no namespace"


def _inside(place, path):
    """The errors in nested values: labels, lists with names, pods, quantities."""
    if isinstance(place, list):
        for number, entry in enumerate(place):
            yield from _inside(entry, f"{path}[{number}]")
    if not isinstance(place, dict):
        return
    for key in ("labels", "annotations", "matchLabels", "nodeSelector"):
        yield from _pairs(place.get(key), key, f"{path}.{key}")
    if isinstance(place.get("containers"), list) and all("image" in box for box in place["containers"]):
        yield from _pod(place, path)
    if isinstance(place.get("resources"), dict):
        yield from _resources(place["resources"], f"{path}.resources")
    for key, entry in place.items():
        yield from _inside(entry, f"{path}.{key}" if path else key)


def _pairs(pairs, what, path):
    if not isinstance(pairs, dict) or not all(isinstance(key, str) for key in pairs):
        return
    for key, value in pairs.items():
        if isinstance(value, (dict, list)):
            return
        if not values.is_key(key):
            yield f"{path}: {key!r} is no key"
        if not isinstance(value, str):
            yield f"{path}: {key} is {value!r} and must be text, in quotes"
        elif what != "annotations" and "${" not in value and not values.is_label_value(value):
            yield f"{path}: {key}: {value!r} is no value of a label"


def _twice(entries, key, path, word):
    names = [entry.get(key) for entry in entries]
    for name in dict.fromkeys(name for name in names if name is not None and names.count(name) > 1):
        yield f"{path}: {word} {name!r} stands there twice"


def _pod(pod, path):
    volumes = pod.get("volumes", [])
    names = {volume["name"] for volume in volumes}
    yield from _twice(volumes, "name", f"{path}.volumes", "volume")
    yield from _twice(pod["containers"], "name", f"{path}.containers", "container")
    for volume in volumes:
        size = volume.get("emptyDir", {}).get("sizeLimit")
        if size is not None and not values.quantity(size):
            yield f"{path}.volumes: {volume['name']}: sizeLimit {size!r} is no quantity"
    claims = {claim["name"] for claim in pod.get("resourceClaims", [])}
    for box in pod["containers"] + pod.get("initContainers", []):
        for claim in box.get("resources", {}).get("claims", []):
            if claim["name"] not in claims:
                yield f"{path}: container {box.get('name')}: the pod has no claim {claim['name']!r}"
        yield from _container(box, names, f"{path}: container {box.get('name')}")


def _container(box, volumes, path):
    for key in ("name", "image"):
        if not box.get(key):
            yield f"{path}: {key} is missing"
    if box.get("name") and values.fault_of_name(box["name"]):
        yield f"{path}: the name {values.fault_of_name(box['name'])}"
    for variable in box.get("env", []):
        if ("value" in variable) == ("valueFrom" in variable):
            yield f"{path}: variable {variable['name']} needs one of value and valueFrom"
        if not isinstance(variable.get("value", ""), str):
            yield f"{path}: variable {variable['name']} is {variable['value']!r} and must be text, in quotes"
    for word in [*box.get("command", []), *box.get("args", [])]:
        if not isinstance(word, str):
            yield f"{path}: the word {word!r} of its command must be text, in quotes"
    yield from _twice(box.get("env", []), "name", path, "variable")
    yield from _twice(box.get("ports", []), "name", path, "port")
    yield from _twice(box.get("ports", []), "containerPort", path, "port")
    yield from _twice(box.get("volumeMounts", []), "mountPath", path, "mount path")
    for port in box.get("ports", []):
        if len(port.get("name", "")) > 15 or not 0 < port["containerPort"] < 65536:
            yield f"{path}: port {port} is beyond 15 letters or 65535"
    for mount in box.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"{path}: mounts {mount['name']!r}, and there is no such volume"
        if not mount["mountPath"].startswith("/"):
            yield f"{path}: mount path {mount['mountPath']!r} is not absolute"


def _resources(resources, path):
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for part, entries in (("requests", requests), ("limits", limits)):
        for name, amount in entries.items():
            if values.quantity(amount) is None and "${" not in str(amount):
                yield f"{path}.{part}: {name} {amount!r} is no quantity"
    for name in set(requests) & set(limits):
        low, high = values.quantity(requests[name]), values.quantity(limits[name])
        if low is None or high is None:
            continue
        if low > high:
            yield f"{path}: {name} requests {requests[name]} and is limited to {limits[name]}"
        if ("/" in name or name.startswith("hugepages")) and low != high:
            yield f"{path}: {name}: the request must be the limit"
    if any(name.startswith("hugepages") for name in limits) and not {"cpu", "memory"} & (set(requests) | set(limits)):
        yield f"{path}: huge pages need a request of cpu or memory beside them"


def _rules(document):
    """The errors in the fields of one kind."""
    kind, spec = document.get("kind"), document.get("spec", {})
    if kind in ("Deployment", "StatefulSet", "DaemonSet"):
        labels = spec["template"]["metadata"].get("labels", {})
        if not spec["selector"]["matchLabels"].items() <= labels.items():
            yield "its selector does not choose its own pods"
        if spec["template"]["spec"].get("restartPolicy", "Always") != "Always":
            yield "restartPolicy of its pods must be Always"
    for job in _job_specs(document):
        restart = job["template"]["spec"].get("restartPolicy")
        if restart not in ("Never", "OnFailure"):
            yield f"restartPolicy of a Job's pods is {restart!r} and must be Never or OnFailure"
        if "podFailurePolicy" in job and restart != "Never":
            yield "podFailurePolicy needs restartPolicy Never"
        if "podFailurePolicy" in job and job.get("podReplacementPolicy", "Failed") != "Failed":
            yield "podFailurePolicy needs podReplacementPolicy Failed"
        if job.get("backoffLimitPerIndex") is not None and job.get("completionMode") != "Indexed":
            yield "backoffLimitPerIndex needs completionMode Indexed"
        if "successPolicy" in job and job.get("completionMode") != "Indexed":
            yield "successPolicy needs completionMode Indexed"
        if "maxFailedIndexes" in job and "backoffLimitPerIndex" not in job:
            yield "maxFailedIndexes needs backoffLimitPerIndex"
        if job.get("maxFailedIndexes", 0) > job.get("completions", 1):
            yield f"maxFailedIndexes {job['maxFailedIndexes']} is above completions {job.get('completions', 1)}"
    if kind == "PersistentVolumeClaim" and not values.quantity(spec["resources"]["requests"]["storage"]):
        yield f"storage {spec['resources']['requests']['storage']!r} is no quantity"
    if kind == "HorizontalPodAutoscaler":
        for metric in spec.get("metrics", []):
            name = metric.get("resource", {}).get("name")
            if name not in (None, "cpu", "memory"):
                yield f"the metric of type Resource can be cpu or memory, and not {name}"
    if kind == "MPIJob" and spec["mpiReplicaSpecs"].get("Launcher", {}).get("replicas", 1) != 1:
        yield "an MPIJob has one launcher"


def _job_specs(document):
    kind, spec = document.get("kind"), document.get("spec", {})
    if kind == "Job":
        yield spec
    if kind == "JobSet":
        yield from (job["template"]["spec"] for job in spec["replicatedJobs"])
    if kind in ("ClusterTrainingRuntime", "TrainingRuntime"):
        yield from (job["template"]["spec"] for job in spec["template"]["spec"]["replicatedJobs"])
    if kind == "Experiment":
        yield from _job_specs(spec["trialTemplate"]["trialSpec"])
