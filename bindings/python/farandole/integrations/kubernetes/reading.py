"""From words to options: read, completed from the table of instances, and checked."""

import re
import shlex
from types import SimpleNamespace

from . import belonging, instances, values
from .combinations import check
from .errors import WrongCombination
from .options import PORTS, given_options, parser

# Kinds in which the number of pods may change, and the reasons why it may not in the others.
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
        raise WrongCombination(
            f"--nnodes {text} with {kind}: {WHY_NOT_ELASTIC[kind]}; use "
            f"`gen job` or `gen pytorchjob` for an elastic job, or give one number"
        )
    if kind == "deployment" and not found.group(2):
        raise WrongCombination(
            f"--nnodes {text} with deployment: its pods have no number and come and go, so its job "
            f"is elastic; give --nnodes MIN:MAX, or use `gen statefulset` for a fixed size"
        )
    return low, high, bool(found.group(2))


def _read_processes(o):
    text = o.nproc_per_node
    if text in ("auto", "gpu", "cpu"):
        if text == "gpu" and not o.gpus:
            raise WrongCombination(
                "--nproc-per-node gpu, but the pods request no GPU: give --gpus N or --instance-type"
            )
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
        raise WrongCombination(
            f"--nproc-per-node {count} with {o.gpus} GPUs a pod: ranks would share a GPU; give "
            f"--nproc-per-node gpu, or --gpus {count}"
        )
    if count >= PORTS:
        raise WrongCombination(
            f"--nproc-per-node {count}: a pod has {PORTS} ports, one of them the rendezvous, so at "
            f"most {PORTS - 1} ranks; use more pods"
        )
    return count


def _read_hardware(o):
    gpus, resource, efa = instances.find(o.instance_type) if o.instance_type else (0, "", None)
    if o.gpus is None:
        o.gpus = gpus
    elif o.gpus < 0:
        raise WrongCombination(f"--gpus {o.gpus} is below 0")
    elif o.instance_type and o.gpus > gpus:
        raise WrongCombination(
            f"--gpus {o.gpus}: a {o.instance_type} has {gpus}; request at most {gpus}, or more pods with --nnodes"
        )
    o.gpu_resource = o.gpu_resource or resource or "nvidia.com/gpu"
    if not values.is_key(o.gpu_resource) or "/" not in o.gpu_resource:
        raise WrongCombination(
            f"--gpu-resource '{o.gpu_resource}' is no resource such as nvidia.com/gpu, amd.com/gpu "
            f"or aws.amazon.com/neuron"
        )
    o.efa = _read_efa(o, efa)


def _read_efa(o, there):
    if o.efa == "off":
        return 0
    if o.efa != "all" and not re.match(r"[1-9]\d?\Z", o.efa):
        raise WrongCombination(f"--efa '{o.efa}' is neither a number nor all or off")
    if there is None:
        if o.efa == "all":
            raise WrongCombination("--efa all needs --instance-type, which determines their number; or give --efa N")
        return int(o.efa)
    if there == 0:
        other = instances.nearest_with_efa(o.instance_type)
        instead = f"the smallest of its family with EFA is {other}" if other else "none of its family has"
        raise WrongCombination(
            f"--efa {o.efa}: {o.instance_type} has no EFA device ({instead}); the pods would stay "
            f"pending with 'Insufficient vpc.amazonaws.com/efa'"
        )
    if o.efa != "all" and int(o.efa) > there:
        raise WrongCombination(
            f"--efa {o.efa}: a {o.instance_type} has {there}; request at most {there}, or use --efa all"
        )
    return there if o.efa == "all" else int(o.efa)


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
    return words[:at], words[at + 1 :]


def read(words):
    """The options of one manifest, checked and completed."""
    options, command = split(words)
    o = SimpleNamespace(**vars(parser().parse_args(options)))
    if not command:
        raise WrongCombination("no command: end with -- and the command of each rank, such as -- python train.py")
    o.command = command
    o.line = shlex.join(["farandole", "kubernetes", "gen", *words])
    o.min_nodes, o.max_nodes, o.elastic = _read_nodes(o.nnodes, o.kind)
    _read_hardware(o)
    belonging.check(o, given_options(options))
    o.processes = _read_processes(o)
    o.nproc = o.nproc_per_node
    check(o)
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
