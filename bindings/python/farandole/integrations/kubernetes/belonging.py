"""Options that belong to some kinds only, or to another option: elsewhere they are refused by name, never ignored."""

from .errors import WrongCombination

_KATIB = "only a Katib Experiment has trials, parameters and a metric; use `gen katib`"
# option: the kinds (or trials) that have it, and the reason for the others
_ONLY = {
    "implementation": ({"mpijob"}, "only an MPIJob is started by mpirun; leave it out"),
    "cluster_runtime": ({"trainjob"}, "only a TrainJob has a runtime; leave it out"),
    "ray_version": ({"rayjob"}, "only a RayJob has Ray's version; leave it out"),
    **{name: ({"katib"}, _KATIB) for name in ("trial", "parameter", "metric", "maximize", "trials", "parallel_trials")},
}
_ENDLESS = "its pods never finish, and are started again for ever; use `gen job` or `gen jobset` for a job that ends"
_ENDLESS_OPTIONS = dict.fromkeys(("max_restarts", "max_runtime", "ttl"), _ENDLESS)
_SSH = (
    "sshd and ssh look the user up in the image's /etc/passwd, where the shipped image has 1000 only, and refuse "
    "others; leave it out"
)
_JSON = "its ranks are not started by `farandole run`, which writes these logs"
# kind: {option: the reason why it has no meaning there}
_NEVER = {
    "statefulset": _ENDLESS_OPTIONS,
    "deployment": _ENDLESS_OPTIONS,
    "lws": _ENDLESS_OPTIONS,
    "trainjob": {"ttl": "a TrainJob has no such field, and deleting its JobSet would fail it; delete the TrainJob"},
    "mpijob": {"json_logs": _JSON, "run_as": _SSH},
    "rayjob": {
        "device_class": "KubeRay reads the number of GPUs from the limits of the containers; leave it out",
        "json_logs": _JSON,
        "gang": "KubeRay makes the PodGroup itself, with its option --batch-scheduler",
    },
    "katib": {
        "gang": "each trial would need a PodGroup of its own; use --queue",
        "ttl": "Katib deletes the job of each trial itself, after it has read its result; leave it out",
    },
}
# option: (the option that it needs, what it would do)
_NEEDS = {
    "required_topology": ("queue", "Kueue reads it"),
    "preferred_topology": ("queue", "Kueue reads it"),
    "location_labels": ("locations", "only `--locations nodes` reads labels of nodes"),
    "capacity_label": ("spot", "it names the label of spot nodes"),
    "storage_class": ("new_pvc", "a claim that exists has its class already"),
    "access_mode": ("new_pvc", "a claim that exists has its mode already"),
    "metrics_port": ("monitoring", "no rank serves metrics"),
    "allow_egress": ("network_policy", "without a policy everything is allowed"),
    "device_class": ("gpus", "it gives the GPUs of the claim; --instance-type of a GPU node gives their number too"),
    "tcp_fallback": ("efa", "no pod has EFA devices, and the ranks use TCP anyway"),
    "compute_domain": ("gpus", "NVLink connects GPUs; --instance-type of a GPU node gives their number too"),
    "gpu_resource": ("gpus", "the pods request no GPU; --instance-type of a GPU node gives their number too"),
}


def _word(option):
    return "--" + option.replace("_", "-")


def check(o, given):
    """WrongCombination if one of the `given` options has no effect. `given`: names of those on the command line."""
    kinds = {o.kind, o.trial} if o.kind == "katib" else {o.kind}
    for option in given:
        allowed, why = _ONLY.get(option, (None, ""))
        if allowed and not allowed & kinds:
            raise WrongCombination(f"{_word(option)} with {o.kind}: {why}")
        for kind in sorted(kinds):
            if option in _NEVER.get(kind, ()):
                raise WrongCombination(f"{_word(option)} with {kind}: {_NEVER[kind][option]}")
        needed, why = _NEEDS.get(option, (None, ""))
        if needed and not getattr(o, needed):
            raise WrongCombination(f"{_word(option)} without {_word(needed)}: {why}")
