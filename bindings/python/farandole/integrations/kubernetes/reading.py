"""From words to options: read, completed from the table of instances, and checked."""

import functools
import re
import shlex
from types import SimpleNamespace

from . import belonging, instances, values
from .combinations import check, check_quantities
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


def _read_processes(o, cpus_of_node):
    text = o.nproc_per_node
    if text in ("auto", "gpu", "cpu"):
        if text == "gpu" and not o.gpus:
            raise WrongCombination(
                "--nproc-per-node gpu, but the pods request no GPU: give --gpus N or --instance-type"
            )
        if text == "cpu":
            cpus = values.quantity(o.cpus or cpus_of_node or "0")
            if cpus < 1:
                raise WrongCombination(
                    "--nproc-per-node cpu needs --cpus N or --instance-type, or the pods have no number of CPUs"
                )
            return min(int(cpus), PORTS - 1)
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
    row = instances.find(o.instance_type) if o.instance_type else None
    gpus, resource, efa = (row.accelerators, row.resource, row.efa) if row else (0, "", None)
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


def _read_amounts(o):
    """CPUs, memory and /dev/shm of a pod that were not given, and in `o.why` the reason of each default."""
    row = instances.find(o.instance_type) if o.instance_type else None
    o.why, o.warnings = {}, []
    if row:
        cpus, memory = row.share(o.gpus)
        allocatable = row.allocatable
        part = f"{o.gpus} of {row.accelerators} accelerators of" if o.gpus and o.gpus < row.accelerators else "all of"
        o.why["cpu"] = (
            f"{part} a {o.instance_type} ({row.vcpus} vCPUs, {row.memory_gib} GiB, "
            + _count(row.network_cards, "network card")
            + (f", {_count(row.numa_nodes, 'NUMA node')}" if row.numa_nodes else "")
            + f"): the kubelet leaves {allocatable[0]:.2f} CPUs and {allocatable[1] // 1024} GiB, of which 1 CPU and 1 "
            "GiB stay for DaemonSets."
        )
        _check_fits(o, row)
    else:
        o.why["cpu"] = f"One CPU and {_gib_a_rank(o)} GiB a rank; --instance-type requests what such a node has."
    if o.cpus and o.memory:
        o.why["cpu"] = None
    o.processes = _read_processes(o, str(cpus) if row else None)
    o.cpus = o.cpus or (str(cpus) if row else str(o.processes))
    o.memory = o.memory or (f"{memory}Gi" if row else f"{_gib_a_rank(o) * o.processes}Gi")
    if not o.shm:
        o.shm, o.why["shm"] = _default_shm(o, row)
    _warn_of_memory(o)


def _default_shm(o, row):
    """(/dev/shm of a pod, the reason)"""
    memory = values.quantity(o.memory)
    each = max(1, min(8, int(memory / 2**33 / o.processes))) if row else 1
    if each * o.processes * 2**31 > memory:
        mib = int(memory / 2**21)
        size = f"{mib}Mi" if mib % 1024 else f"{mib // 1024}Gi"
        return size, "Half of the memory, because 1 GiB a rank would be more."
    why = f"{each} GiB a rank" + (", an eighth of its memory and at most 8 GiB." if row else ".")
    return f"{each * o.processes}Gi", why


def _count(number, noun):
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _gib_a_rank(o):
    return 8 if o.gpus else 2


def _check_fits(o, row):
    """WrongCombination if a pod requests more than a node of its type has: it would stay pending. A warning if it
    requests more than the kubelet leaves, which for memory is an estimate."""
    cpus, mib = row.allocatable
    for option, amount, there, left, unit in (
        ("cpus", o.cpus, row.vcpus, f"{cpus:.2f}", ""),
        ("memory", o.memory, row.memory_gib, str(mib // 1024), "Gi"),
    ):
        wanted = values.quantity(amount) if amount else 0
        if wanted > values.quantity(f"{left}{unit}"):
            o.warnings.append(
                f"--{option} {amount}: of a {o.instance_type} the kubelet leaves about {left}{unit} for pods, and a "
                f"pod that requests more stays pending. Request less, or leave --{option} out."
            )
        if wanted > values.quantity(f"{there}{unit}"):
            raise WrongCombination(
                f"--{option} {amount}: a {o.instance_type} has {there}{unit}, and less for pods; the pod would stay "
                f"pending. Request less, or leave --{option} out"
            )


LEAST_GIB = {"cpu": 1, "gpu": 4}  # for a rank: Python and PyTorch; with a GPU also the CUDA context and pinned buffers


def _warn_of_memory(o):
    least = LEAST_GIB["gpu" if o.gpus else "cpu"]
    each = float(values.quantity(o.memory) / 2**30 / o.processes)
    if each < least:
        o.warnings.append(
            f"{o.memory} of memory are {each:.2g} GiB for each of {_count(o.processes, 'rank')}; a rank with PyTorch"
            f"{' and a GPU' if o.gpus else ''} needs about {least} GiB before it loads data. Give more --memory, or "
            "the pods may be killed with 137."
        )


def _is_parameter(name):
    return re.match(r"[A-Za-z]\w*\Z", name)


def _number(word, text):
    if not re.match(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\Z", text):
        raise WrongCombination(f"--parameter {word}: '{text}' is no number")
    return float(text)


def _whole_number(word, text):
    if not re.match(r"[-+]?\d+\Z", text):
        raise WrongCombination(f"--parameter {word}: '{text}' is no whole number; use the type double")
    return int(text)


def _check_words_of_trials(o):
    """Katib joins the words of a trial's first pod by spaces, and runs them with `sh -c`."""
    choices = [choice for _, kind, *space in o.parameter if kind == "categorical" for choice in space[0]]
    for word in [*o.command, *choices]:
        if shlex.quote(word) != word:
            raise WrongCombination(
                f"'{word}': Katib gives the command to a shell without quotes, which would split or change this word; "
                "put it into a script in the image"
            )
    if not re.match(r"[\w|-]+\Z", o.metric, re.ASCII):
        raise WrongCombination(
            f"--metric '{o.metric}' may only have letters, digits, '_', '|' and '-', or Katib's filter does not find it"
        )


def _choices(word, kind, text):
    """The values of a discrete or categorical parameter, each once."""
    choices = text.split(",")
    if "" in choices or len(set(choices)) < max(2, len(choices)):
        raise WrongCombination(f"--parameter {word}: give at least two values, each once, with commas between them")
    if kind == "discrete":
        for choice in choices:
            _number(word, choice)
    return choices


def _read_parameters(words):
    parameters = []
    for word in words:
        parts = word.split(":")
        if len(parts) == 3 and parts[1] in ("categorical", "discrete") and _is_parameter(parts[0]):
            parameters.append([*parts[:2], _choices(word, *parts[1:])])
            continue
        if len(parts) != 4 or parts[1] not in ("double", "int") or not _is_parameter(parts[0]):
            raise WrongCombination(
                f"--parameter '{word}' is not NAME:double:MIN:MAX, NAME:int:MIN:MAX, NAME:discrete:1,2,4 or "
                "NAME:categorical:A,B"
            )
        low, high = ((_whole_number if parts[1] == "int" else _number)(word, text) for text in parts[2:])
        if not low < high:
            raise WrongCombination(f"--parameter {word}: {parts[2]} is not below {parts[3]}")
        parameters.append(parts)
    names = [name for name, *_ in parameters]
    for name in names:
        if names.count(name) > 1:
            raise WrongCombination(f"--parameter {name} is given twice")
        if name == "trialName":
            raise WrongCombination("--parameter trialName is Katib's own name here; use another one")
    return parameters


_parser = functools.cache(parser)


def split(words):
    """The options, and the command behind the first `--`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _check_texts(o, given):
    """WrongCombination for an option without a text, such as an unset variable of the shell: it is not ignored."""
    for name in given:
        value = getattr(o, name)
        if value == "" or (isinstance(value, list) and "" in value):
            raise WrongCombination(f"--{name.replace('_', '-')} has no value; give one, or leave the option out")
    if re.search(r"\s", o.image):
        raise WrongCombination(f"--image '{o.image}' contains a space, which no name of an image has")
    for word in [*o.command, *o.env]:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise WrongCombination(f"{ascii(word)} is not UTF-8, and a manifest can have nothing else")


def read(words, account_namespace=None):
    """The options of one manifest, checked and completed. `account_namespace`: that of the service account where
    --namespace does not give it."""
    options, command = split(words)
    o = SimpleNamespace(**vars(_parser().parse_args(options)))
    if not command:
        raise WrongCombination("no command: end with -- and the command of each rank, such as -- python train.py")
    o.command = command
    o.line = shlex.join(["farandole", "kubernetes", "gen", *words])
    o.account_namespace = o.namespace or account_namespace
    o.min_nodes, o.max_nodes, o.elastic = _read_nodes(o.nnodes, o.kind)
    _read_hardware(o)
    given = given_options(options)
    _check_texts(o, given)
    belonging.check(o, given)
    check_quantities(o)
    _read_amounts(o)
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
    if o.kind == "katib":
        _check_words_of_trials(o)
    return o
