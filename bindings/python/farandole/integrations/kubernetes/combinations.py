"""Options that exclude each other, with the reasons."""

from . import values
from .errors import WrongCombination
from .gang import QUEUE
from .names import RESERVED
from .options import PORTS

LONGEST_S = 2**31 - 1
_LONGEST_LIST = 16  # labels of nodes


def check_quantities(o):
    """Before the amounts that were not given are chosen."""
    for option in ("cpus", "memory", "shm", "hugepages_2mi"):
        text = getattr(o, option)
        if text is not None and not values.quantity(text):
            raise WrongCombination(
                f"--{option.replace('_', '-')} '{text}' is no quantity above 0 such as 500m, 4, 16Gi"
            )
        if text is not None and option in ("memory", "shm") and values.fault_of_size(text):
            raise WrongCombination(f"--{option} {text} {values.fault_of_size(text)}")
    if o.hugepages_2mi:
        if not o.memory:
            raise WrongCombination(
                "--hugepages-2mi without --memory: Kubernetes refuses huge pages in a container "
                "that requests neither CPU nor memory; give --memory"
            )
        if values.quantity(o.hugepages_2mi) % 2**21:
            raise WrongCombination(f"--hugepages-2mi {o.hugepages_2mi} is no multiple of 2Mi")


def _check_sizes(o):
    if o.max_runtime and not values.seconds(o.max_runtime):
        raise WrongCombination(f"--max-runtime '{o.max_runtime}' is no duration such as 90m, 12h or 1h30m")
    if o.max_runtime and values.seconds(o.max_runtime) > LONGEST_S:
        raise WrongCombination(
            f"--max-runtime {o.max_runtime} is longer than {LONGEST_S} s, the most that KubeRay takes"
        )
    for option, low, high in (
        ("grace", 1, 86400),
        ("max_restarts", 0, 1000),
        ("ttl", 0, LONGEST_S),
        ("run_as", 1, 2**31 - 1),
        ("port_base", 1024, 65536 - PORTS),
        ("metrics_port", 1024, 65535),
        ("trials", 1, 10000),
        ("parallel_trials", 1, 10000),
    ):
        if getattr(o, option) is not None and not low <= getattr(o, option) <= high:
            why = "; no part of a job needs root" if option == "run_as" else ""
            raise WrongCombination(
                f"--{option.replace('_', '-')} {getattr(o, option)} is not within {low} to {high}{why}"
            )
    if o.spot and o.grace > 110:
        raise WrongCombination(
            f"--grace {o.grace} with --spot: AWS removes the node 120 s after its notice, so a longer "
            f"grace period is cut off; give at most 110"
        )
    if o.monitoring and o.metrics_port < o.port_base + PORTS and o.metrics_port + o.processes > o.port_base:
        raise WrongCombination(
            f"--metrics-port {o.metrics_port} lies in the job's own ports, {o.port_base} to "
            f"{o.port_base + PORTS - 1}; move one of them"
        )
    if o.monitoring and o.metrics_port + o.processes > 65536:
        raise WrongCombination(
            f"--metrics-port {o.metrics_port}: local rank {o.processes - 1} would serve its metrics on port "
            f"{o.metrics_port + o.processes - 1}; give at most {65536 - o.processes}"
        )
    for port in o.allow_egress:
        if not 1 <= port <= 65535:
            raise WrongCombination(f"--allow-egress {port} is not within 1 to 65535")
    if o.access_mode not in ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", "ReadOnlyMany"):
        raise WrongCombination(
            f"--access-mode {o.access_mode} is none of ReadWriteMany, ReadWriteOnce, ReadOnlyMany, ReadWriteOncePod"
        )
    if o.new_pvc and o.max_nodes > 1 and o.access_mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        raise WrongCombination(
            f"--access-mode {o.access_mode} with {o.max_nodes} pods: the claim can be mounted on one "
            f"node only, and the other pods would wait for ever; use a storage class with "
            f"ReadWriteMany (FSx for Lustre, EFS, CephFS)"
        )


def _check_locations(o):
    if o.locations == "zone" and o.zone:
        raise WrongCombination(
            "--locations zone with --zone: all pods run in that zone, and it tells nothing about their "
            "distance; use --locations nodes, or leave one out"
        )
    if o.locations == "nodes" and not o.account_namespace:
        raise WrongCombination(
            "--locations nodes without --namespace: a ClusterRoleBinding names the namespace of its service account; "
            "give --namespace"
        )
    if not o.location_labels:
        return
    if o.locations == "zone":
        raise WrongCombination(
            "--location-labels with --locations zone: Kubernetes copies the label of the zone to pods, and not these; "
            "use --locations nodes"
        )
    labels = o.location_labels.split(",")
    for label in labels:
        if not values.is_key(label):
            raise WrongCombination(f"--location-labels: '{label}' is no label of nodes; write A,B without spaces")
    if len(set(labels)) < len(labels) or len(labels) > _LONGEST_LIST:
        raise WrongCombination(
            f"--location-labels {o.location_labels}: give each label once, and at most {_LONGEST_LIST}"
        )


def _check_kind(o):
    in_job_set = f"-node-0-{o.max_nodes - 1}-xxxxx"  # JobSet counts the random letters of a pod's name too
    longest = {
        "job": f"-{o.max_nodes - 1}",
        "jobset": in_job_set,
        # A StatefulSet and its revision become a label of each pod; a LeaderWorkerSet has one for its workers.
        "lws": "-0-xxxxxxxxxx",
        "statefulset": "-xxxxxxxxxx",
        "trainjob": in_job_set,
        "rayjob": "-xxxxx-serve-svc",  # KubeRay reserves it, also where nothing is served
        "katib": "-xxxxxxxx" + (in_job_set if o.trial == "trainjob" else f"-worker-{o.max_nodes - 1}"),
    }.get(o.kind, f"-worker-{o.max_nodes - 1}")
    fault = values.fault_of_service_name(o.name, 63 - len(longest))
    if fault:
        raise WrongCombination(f"--name '{o.name}' {fault}: it is in names and labels of the pods ({o.name}{longest})")
    if o.namespace and values.fault_of_name(o.namespace):
        raise WrongCombination(f"--namespace '{o.namespace}' {values.fault_of_name(o.namespace)}")
    for option in ("service_account", "job_key_secret", "priority_class", "scheduler_name", "storage_class", "queue"):
        fault = values.fault_of_name((getattr(o, option) or "x").replace(".", "-"), 253)
        if fault:
            raise WrongCombination(f"--{option.replace('_', '-')} '{getattr(o, option)}' {fault}, or has dots between")
    for word in o.label:
        if word.partition("=")[0] in RESERVED:
            raise WrongCombination(f"--label {word}: the job's objects find its pods by this label; use --name")
        if o.queue and word.partition("=")[0] == QUEUE:
            raise WrongCombination(f"--label {word} with --queue {o.queue}: both name a queue; leave the label out")
    if o.system_selector and not {"mpijob", "rayjob"} & {o.kind, o.trial if o.kind == "katib" else None}:
        raise WrongCombination(
            f"--system-selector with {o.kind}: all of its pods are ranks; use --node-selector, or "
            f"`gen mpijob` or `gen rayjob`, which have a pod that is none"
        )
    for option in ("required_topology", "preferred_topology"):
        if getattr(o, option) and not values.is_key(getattr(o, option)):
            raise WrongCombination(f"--{option.replace('_', '-')} '{getattr(o, option)}' is no label of nodes")
    if o.device_class and values.fault_of_name(o.device_class.replace(".", "-"), 253):
        raise WrongCombination(f"--device-class '{o.device_class}' is no name such as gpu.nvidia.com")
    if o.compute_domain and o.max_nodes == 1:
        raise WrongCombination("--compute-domain with one pod: NVLink within a node needs none; leave it out")
    if o.required_topology and o.preferred_topology:
        raise WrongCombination("--required-topology with --preferred-topology: Kueue accepts one of them")
    if o.gang and o.queue:
        raise WrongCombination("--gang with --queue: Kueue admits all pods of a job together by itself; leave one out")
    if o.queue and o.elastic and o.kind == "rayjob":
        raise WrongCombination(
            "--queue with an elastic rayjob: Kueue refuses a RayJob that uses Ray's autoscaler; give --nnodes one "
            "number, or leave --queue out"
        )
    if o.parallel_trials and o.parallel_trials > o.trials:
        raise WrongCombination(
            f"--parallel-trials {o.parallel_trials} with {o.trials} trials: Katib refuses more at a time than "
            f"there are; give at most {o.trials}, or more --trials"
        )
    if o.kind == "katib" and not o.parameter:
        raise WrongCombination("katib needs something to search: --parameter lr:double:0.001:0.1")
    if o.network_policy and o.kind == "rayjob":
        raise WrongCombination(
            "--network-policy with rayjob: Ray's own processes listen on ports that they choose; use "
            "KubeRay's own field: --set "
            "RayJob.spec.rayClusterSpec.networkPolicy.mode=DenyAllIngress"
        )
    if values.quantity(o.shm) >= values.quantity(o.memory):
        raise WrongCombination(
            f"--shm {o.shm} leaves nothing of the {o.memory} of memory: files in "
            "/dev/shm count as the container's memory; give more --memory, or less --shm"
        )
    if o.host_network and o.network_policy:
        raise WrongCombination(
            "--network-policy with --host-network: a policy does not apply to pods in the node's "
            "network; leave one of them out"
        )
    if o.read_only_root and {"mpijob", "rayjob"} & {o.kind, o.trial if o.kind == "katib" else None}:
        raise WrongCombination(
            f"--read-only-root with {o.kind}: {'Ray writes' if o.kind == 'rayjob' else 'sshd and mpirun write'}"
            f" outside /tmp; leave it out"
        )


def check(o):
    """WrongCombination if the completed options make no job that can run."""
    _check_sizes(o)
    _check_locations(o)
    _check_kind(o)
