"""What `farandole kubernetes gen` is asked for: its options, and which of them cannot go together."""

import argparse
import re
import shlex
from types import SimpleNamespace

from . import instances, values
from .errors import WrongCombination

# What the kinds can do. `elastic`: the number of pods may change while it runs.
KINDS = {
    "job": "Indexed Job: the plain way. Nothing but Kubernetes itself is needed",
    "jobset": "JobSet: an Indexed Job that is restarted as a whole",
    "statefulset": "StatefulSet: ranks that never finish, with stable names",
    "deployment": "Deployment: elastic ranks that never finish, for continuous training and the HPA",
    "lws": "LeaderWorkerSet: one group of pods, recreated together",
    "mpijob": "MPIJob of MPI Operator: mpirun in a launcher pod, ssh to the workers",
    "pytorchjob": "PyTorchJob of Training Operator; with --nnodes MIN:MAX its elastic form",
    "tfjob": "TFJob of Training Operator",
    "trainjob": "TrainJob of Kubeflow Trainer v2, with its ClusterTrainingRuntime",
    "rayjob": "RayJob of KubeRay",
    "katib": "Katib Experiment: random search with one of the above as its trial",
}
ELASTIC = {"job", "deployment", "pytorchjob", "rayjob"}
WHY_NOT_ELASTIC = {
    "jobset": "a JobSet is restarted as a whole",
    "statefulset": "a StatefulSet keeps every ordinal alive, so its size never changes by itself",
    "lws": "a group of a LeaderWorkerSet has one size",
    "mpijob": "an MPIJob has no scale, fails as a whole when a worker is evicted, and needs its one launcher pod",
    "tfjob": "a TFJob's TF_CONFIG lists every task, and TFJob has no scale",
    "trainjob": "Trainer v2 has no elastic training",
    "katib": "a trial is compared with others of the same size",
}
TRIALS = ["job", "pytorchjob", "mpijob", "trainjob"]
PORTS = 64  # of the fixed range that begins with --port-base


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise WrongCombination(f"{message}; `{self.prog} --help` lists the options")


def _list(group, name, metavar, meaning):
    group.add_argument(name, metavar=metavar, action="append", default=[], help=meaning)


def _add_size(group):
    group.add_argument("--nnodes", default="1", metavar="N|MIN:MAX", help="pods; MIN:MAX makes the job elastic")
    group.add_argument("--nproc-per-node", default="1", metavar="N|auto|gpu|cpu", help="ranks in each pod")
    group.add_argument("--max-restarts", type=int, default=3, metavar="N", help="failures that are survived (3)")
    group.add_argument("--max-runtime", metavar="12h", help="after this the job is ended; Karpenter waits as long")
    group.add_argument("--ttl", type=int, metavar="SECONDS", help="the finished job is deleted after these seconds")
    group.add_argument("--grace", type=int, default=110, metavar="SECONDS",
                       help="from SIGTERM to SIGKILL (110: what spot leaves, less a margin)")


def _add_hardware(group):
    group.add_argument("--instance-type", metavar="TYPE", help="p5.48xlarge, ...: gives --gpus and --efa their counts")
    group.add_argument("--gpus", type=int, metavar="N", help="GPUs of each pod (all of --instance-type)")
    group.add_argument("--gpu-resource", metavar="NAME", help="resource they are asked for by (nvidia.com/gpu)")
    group.add_argument("--efa", metavar="N|all|off", default="off", help="EFA devices of each pod")
    group.add_argument("--cpus", default=None, metavar="N", help="CPUs of each pod (one a rank)")
    group.add_argument("--memory", default=None, metavar="SIZE", help="memory of each pod (2Gi a rank)")
    group.add_argument("--hugepages-2mi", metavar="SIZE", help="huge pages for EFA; off, see the documentation")
    group.add_argument("--shm", default=None, metavar="SIZE", help="/dev/shm (1Gi a rank; Kubernetes gives 64Mi)")
    group.add_argument("--host-network", action="store_true", help="the node's own network")


def _add_place(group):
    group.add_argument("--spot", action="store_true", help="spot capacity of Karpenter or EKS")
    group.add_argument("--capacity-label", default="karpenter.sh/capacity-type=spot", metavar="KEY=VALUE",
                       help="the node label by which --spot asks for it")
    group.add_argument("--zone", metavar="ZONE", help="this zone (else: all pods in one zone, whichever)")
    _list(group, "--node-selector", "KEY=VALUE", "only nodes with this label")
    _list(group, "--system-selector", "KEY=VALUE", "the same for what is no rank: launcher of mpijob, head of rayjob")
    _list(group, "--toleration", "KEY[=VALUE][:EFFECT]", "a taint that does not keep the pods away")
    group.add_argument("--priority-class", metavar="NAME", help="PriorityClass of the pods")
    group.add_argument("--queue", metavar="NAME", help="Kueue's local queue: the job waits there, suspended")


def _add_storage(group):
    _list(group, "--pvc", "CLAIM:PATH[:ro]", "mount an existing claim")
    _list(group, "--new-pvc", "CLAIM:PATH:SIZE", "make a claim and mount it")
    group.add_argument("--storage-class", metavar="NAME", help="of the new claims (the cluster's default)")
    group.add_argument("--access-mode", default="ReadWriteMany", metavar="MODE", help="of them (ReadWriteMany)")
    _list(group, "--config-map", "NAME:PATH", "mount a ConfigMap, for scripts")


def _add_safety(group):
    group.add_argument("--service-account", metavar="NAME", help="an existing one, such as one with a role for S3")
    group.add_argument("--job-key-secret", metavar="NAME", help="Secret whose entry 'key' is the job's key")
    group.add_argument("--run-as", type=int, default=1000, metavar="UID", help="user and group (1000)")
    group.add_argument("--read-only-root", action="store_true", help="a read-only root file system, and /tmp in memory")
    group.add_argument("--network-policy", action="store_true", help="only the job's own ports, between its own pods")
    group.add_argument("--allow-egress", type=int, action="append", default=[], metavar="PORT",
                       help="with --network-policy: a TCP port that may be reached anywhere (443 for S3)")
    group.add_argument("--port-base", type=int, default=29500, metavar="PORT", help=f"first of {PORTS} fixed ports")


def _add_watching(group):
    group.add_argument("--monitoring", action="store_true", help="each rank's metrics, and a PodMonitor")
    group.add_argument("--metrics-port", type=int, default=9400, metavar="PORT", help="of local rank 0 (9400)")
    group.add_argument("--json-logs", action="store_true", help="logs with one JSON object a line, for CloudWatch")


def _add_details(group):
    _list(group, "--env", "NAME=VALUE", "a variable of the ranks")
    _list(group, "--label", "KEY=VALUE", "a label of every object and pod")
    _list(group, "--annotation", "KEY=VALUE", "an annotation of every pod")
    _list(group, "--set", "PATH=VALUE", "overrides what was made: Job.spec.backoffLimit=0")
    group.add_argument("--implementation", choices=["openmpi", "mpich"], default="openmpi", help="mpijob: whose mpirun")
    group.add_argument("--ray-version", default="2.60.0", metavar="VERSION", help="rayjob: Ray's version in the image")
    group.add_argument("--trial", choices=TRIALS, default="job", help="katib: what one trial is")
    _list(group, "--parameter", "NAME:TYPE:MIN:MAX", "katib: lr:double:0.001:0.1, given to the command as --lr=...")
    group.add_argument("--metric", default="loss", metavar="NAME", help="katib: printed by rank 0 as `loss=0.25`")
    group.add_argument("--maximize", action="store_true", help="katib: the metric is to be large")
    group.add_argument("--trials", type=int, default=12, metavar="N", help="katib: how many in all")
    group.add_argument("--parallel-trials", type=int, default=3, metavar="N", help="katib: how many at a time")


def parser():
    kinds = "\n".join(f"  {kind:<12} {meaning}" for kind, meaning in KINDS.items())
    result = _Parser(
        prog="farandole kubernetes gen", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        usage="farandole kubernetes gen KIND --image IMAGE [options] -- COMMAND...",
        description=f"Prints a manifest for `kubectl apply -f -`. KIND is one of\n{kinds}",
        epilog="After --: the command of each rank, the same in every pod.")
    result.add_argument("kind", choices=list(KINDS), metavar="KIND", help="see above")
    first = result.add_argument_group("what")
    first.add_argument("--name", default="train", help="of the job (train)")
    first.add_argument("--namespace", help="written into every object (none: kubectl's own)")
    first.add_argument("--image", required=True, help="with farandole and the program in it")
    _add_size(result.add_argument_group("how many, how long"))
    _add_hardware(result.add_argument_group("hardware of a pod"))
    _add_place(result.add_argument_group("where"))
    _add_storage(result.add_argument_group("storage"))
    _add_safety(result.add_argument_group("safety"))
    _add_watching(result.add_argument_group("watching"))
    _add_details(result.add_argument_group("details"))
    return result


def _pairs(words, option, key_is=values.is_key):
    pairs = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key_is(key):
            raise WrongCombination(f"{option} '{word}' is not KEY=VALUE")
        if key in pairs:
            raise WrongCombination(f"{option} {key} is given twice")
        pairs[key] = value
    return pairs


def _read_nodes(text, kind):
    found = re.match(r"([1-9]\d{0,4})(?::([1-9]\d{0,4}))?\Z", text)
    if not found:
        raise WrongCombination(f"--nnodes '{text}' is neither a number nor MIN:MAX")
    low = int(found.group(1))
    high = int(found.group(2) or low)
    if high < low:
        raise WrongCombination(f"--nnodes {text}: MIN is above MAX; write {high}:{low}")
    if found.group(2) and kind not in ELASTIC:
        raise WrongCombination(f"--nnodes {text} with {kind}: {WHY_NOT_ELASTIC[kind]}; use "
                               f"`gen job` or `gen pytorchjob` for an elastic job, or give one number")
    if kind == "deployment" and not found.group(2):
        raise WrongCombination(f"--nnodes {text} with deployment: its pods have no number and come and go, so its job "
                               f"is elastic; give --nnodes MIN:MAX, or use `gen statefulset` for a fixed size")
    return low, high, bool(found.group(2))


def _read_processes(o):
    text = o.nproc_per_node
    if text in ("auto", "gpu", "cpu"):
        if text == "gpu" and not o.gpus:
            raise WrongCombination("--nproc-per-node gpu, but the pods ask for no GPU: give --gpus N or --instance-type")
        if text == "cpu":
            cpus = values.quantity(o.cpus) if o.cpus else None
            if cpus is None or cpus < 1:
                raise WrongCombination("--nproc-per-node cpu needs --cpus N, or the pods have no number of CPUs")
            return int(cpus)
        return max(1, o.gpus)
    if not re.match(r"[1-9]\d{0,3}\Z", text):
        raise WrongCombination(f"--nproc-per-node '{text}' is neither a number nor auto, gpu or cpu")
    count = int(text)
    if o.gpus and count > o.gpus:
        raise WrongCombination(f"--nproc-per-node {count} with {o.gpus} GPUs a pod: ranks would share a GPU; give "
                               f"--nproc-per-node gpu, or --gpus {count}")
    if count >= PORTS:
        raise WrongCombination(f"--nproc-per-node {count}: a pod has {PORTS} ports, one of them the rendezvous, so at "
                               f"most {PORTS - 1} ranks; use more pods")
    return count


def _read_hardware(o):
    gpus, resource, efa = instances.find(o.instance_type) if o.instance_type else (0, "", None)
    if o.gpus is None:
        o.gpus = gpus
    elif o.gpus < 0:
        raise WrongCombination(f"--gpus {o.gpus} is below 0")
    elif o.instance_type and o.gpus > gpus:
        raise WrongCombination(f"--gpus {o.gpus}: a {o.instance_type} has {gpus}; ask for at most {gpus}, and for more "
                               f"pods with --nnodes")
    o.gpu_resource = o.gpu_resource or resource or "nvidia.com/gpu"
    if not values.is_key(o.gpu_resource) or "/" not in o.gpu_resource:
        raise WrongCombination(f"--gpu-resource '{o.gpu_resource}' is no resource such as nvidia.com/gpu, amd.com/gpu "
                               f"or aws.amazon.com/neuron")
    o.efa = _read_efa(o, efa)


def _read_efa(o, there):
    if o.efa == "off":
        return 0
    if o.efa != "all" and not re.match(r"[1-9]\d?\Z", o.efa):
        raise WrongCombination(f"--efa '{o.efa}' is neither a number nor all or off")
    if there is None:
        if o.efa == "all":
            raise WrongCombination("--efa all needs --instance-type, which says how many there are; or give --efa N")
        return int(o.efa)
    if there == 0:
        other = instances.nearest_with_efa(o.instance_type)
        instead = f"the smallest of its family with EFA is {other}" if other else "none of its family has"
        raise WrongCombination(f"--efa {o.efa}: {o.instance_type} has no EFA device ({instead}); the pods would stay "
                               f"pending with 'Insufficient vpc.amazonaws.com/efa'")
    if o.efa != "all" and int(o.efa) > there:
        raise WrongCombination(f"--efa {o.efa}: a {o.instance_type} has {there}; ask for at most {there}, or --efa all")
    return there if o.efa == "all" else int(o.efa)


def _check_sizes(o):
    for option in ("cpus", "memory", "shm", "hugepages_2mi"):
        text = getattr(o, option)
        if text is not None and not values.quantity(text):
            raise WrongCombination(f"--{option.replace('_', '-')} '{text}' is no quantity above 0 such as 500m, 4, 16Gi")
    if o.hugepages_2mi:
        if not o.memory:
            raise WrongCombination("--hugepages-2mi without --memory: Kubernetes refuses huge pages in a container "
                                   "that asks for neither CPU nor memory, and they count beside it; give --memory")
        if values.quantity(o.hugepages_2mi) % 2**21:
            raise WrongCombination(f"--hugepages-2mi {o.hugepages_2mi} is no multiple of 2Mi")
    if o.max_runtime and not values.seconds(o.max_runtime):
        raise WrongCombination(f"--max-runtime '{o.max_runtime}' is no duration such as 90m, 12h or 1h30m")
    for option, low, high in (("grace", 1, 86400), ("max_restarts", 0, 1000), ("run_as", 1, 2**31 - 1),
                              ("port_base", 1024, 65536 - PORTS), ("metrics_port", 1024, 65535), ("trials", 1, 10000),
                              ("parallel_trials", 1, 10000)):
        if not low <= getattr(o, option) <= high:
            why = "; root is not needed: no part of a job is" if option == "run_as" else ""
            raise WrongCombination(f"--{option.replace('_', '-')} {getattr(o, option)} is not within {low} to {high}{why}")
    if o.spot and o.grace > 110:
        raise WrongCombination(f"--grace {o.grace} with --spot: AWS takes the node 120 s after its notice, so what lies "
                               f"beyond 110 s is cut off; give at most 110")
    if o.monitoring and o.metrics_port < o.port_base + PORTS and o.metrics_port + o.processes > o.port_base:
        raise WrongCombination(f"--metrics-port {o.metrics_port} lies in the job's own ports, {o.port_base} to "
                               f"{o.port_base + PORTS - 1}; move one of them")
    if o.access_mode not in ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod", "ReadOnlyMany"):
        raise WrongCombination(f"--access-mode {o.access_mode} is none of ReadWriteMany, ReadWriteOnce, ReadOnlyMany, "
                               f"ReadWriteOncePod")
    if o.new_pvc and o.max_nodes > 1 and o.access_mode in ("ReadWriteOnce", "ReadWriteOncePod"):
        raise WrongCombination(f"--access-mode {o.access_mode} with {o.max_nodes} pods: the claim can be mounted on one "
                               f"node only, and the other pods would wait for ever; use a storage class with "
                               f"ReadWriteMany (FSx for Lustre, EFS, CephFS)")


def _check_kind(o):
    longest = {"job": f"-{o.max_nodes - 1}", "jobset": f"-node-0-{o.max_nodes - 1}", "lws": f"-0-{o.max_nodes - 1}",
               "statefulset": f"-{o.max_nodes - 1}", "trainjob": f"-node-0-{o.max_nodes - 1}", "rayjob": "-head-svc",
               "katib": "-xxxxxxxx-launcher"}.get(o.kind, f"-worker-{o.max_nodes - 1}")
    fault = values.fault_of_name(o.name, 63 - len(longest))
    if fault:
        raise WrongCombination(f"--name '{o.name}' {fault}: it becomes the host name of the pods ({o.name}{longest})")
    if o.namespace and values.fault_of_name(o.namespace):
        raise WrongCombination(f"--namespace '{o.namespace}' {values.fault_of_name(o.namespace)}")
    if o.allow_egress and not o.network_policy:
        raise WrongCombination("--allow-egress without --network-policy: without one everything is allowed")
    if o.storage_class and not o.new_pvc:
        raise WrongCombination("--storage-class without --new-pvc: a claim that exists has its class already")
    if o.system_selector and not {"mpijob", "rayjob"} & {o.kind, o.trial if o.kind == "katib" else None}:
        raise WrongCombination(f"--system-selector with {o.kind}: all of its pods are ranks; use --node-selector, or "
                               f"`gen mpijob` or `gen rayjob`, which have a pod that is none")
    if (o.parameter or o.maximize) and o.kind != "katib":
        raise WrongCombination("--parameter and --maximize belong to `gen katib`")
    if o.queue and o.kind in ("statefulset", "deployment", "lws"):
        raise WrongCombination(f"--queue with {o.kind}: Kueue starts jobs that can be suspended; use job or jobset")
    if o.kind == "katib" and not o.parameter:
        raise WrongCombination("katib needs something to search: --parameter lr:double:0.001:0.1")
    if o.network_policy and o.kind == "rayjob":
        raise WrongCombination("--network-policy with rayjob: Ray's own processes listen on ports of their choosing, and "
                               "KubeRay knows them; use its field: --set "
                               "RayJob.spec.rayClusterSpec.networkPolicy.mode=DenyAllIngress")
    if values.quantity(o.shm or "0") >= values.quantity(o.memory or f"{2 * o.processes}Gi"):
        raise WrongCombination(f"--shm {o.shm} leaves nothing of the {o.memory or f'{2 * o.processes}Gi'} of memory: what lies in "
                               f"/dev/shm counts as the container's memory; give more --memory")
    if o.host_network and o.network_policy:
        raise WrongCombination("--network-policy with --host-network: a policy does not apply to pods in the node's "
                               "network; leave one of them out")
    if o.read_only_root and o.kind in ("mpijob", "rayjob"):
        raise WrongCombination(f"--read-only-root with {o.kind}: {'sshd and mpirun write' if o.kind == 'mpijob' else 'Ray writes'}"
                               f" outside /tmp; leave it out")


def _read_parameters(words):
    parameters = []
    for word in words:
        parts = word.split(":")
        if len(parts) != 4 or parts[1] not in ("double", "int") or not re.match(r"[A-Za-z]\w*\Z", parts[0]):
            raise WrongCombination(f"--parameter '{word}' is not NAME:double:MIN:MAX or NAME:int:MIN:MAX")
        try:
            if not float(parts[2]) < float(parts[3]):
                raise WrongCombination(f"--parameter {word}: {parts[2]} is not below {parts[3]}")
        except ValueError as error:
            raise WrongCombination(f"--parameter {word}: {error}") from None
        parameters.append(parts)
    return parameters


def split(words):
    """The options, and the command behind the first `--`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1:]


def read(words):
    """The options of one manifest, checked and completed."""
    options, command = split(words)
    o = SimpleNamespace(**vars(parser().parse_args(options)))
    if not command:
        raise WrongCombination("no command: end with -- and what each rank runs, such as -- python train.py")
    o.command = command
    o.line = shlex.join(["farandole", "kubernetes", "gen", *words])
    o.min_nodes, o.max_nodes, o.elastic = _read_nodes(o.nnodes, o.kind)
    _read_hardware(o)
    o.processes = _read_processes(o)
    o.nproc = o.nproc_per_node
    _check_sizes(o)
    _check_kind(o)
    o.node_selector = _pairs(o.node_selector, "--node-selector")
    _pairs([o.capacity_label], "--capacity-label")
    o.system_selector = _pairs(o.system_selector, "--system-selector")
    o.label = _pairs(o.label, "--label")
    o.annotation = _pairs(o.annotation, "--annotation")
    o.env = _pairs(o.env, "--env", values.is_variable)
    o.set = [word.partition("=")[::2] for word in o.set]
    o.parameter = _read_parameters(o.parameter)
    o.cpus = o.cpus or str(o.processes)
    o.memory = o.memory or f"{2 * o.processes}Gi"
    o.shm = o.shm or f"{o.processes}Gi"
    return o
