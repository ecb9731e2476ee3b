"""The values of a chart: the option of `gen` behind each, its placeholders, and its JSON schema."""

from dataclasses import dataclass, field

from ..location.manifest import MODES
from ..names import RESERVED
from ..options import GANGS, PORTS

NAME, NAMESPACE = "sentinel-name", "sentinel-space"
NODES, LEAST = 40013, 30011  # --nnodes LEAST:NODES
RANKS = 61
GRACE, GRACE_ON_SPOT = 80021, 109
PORT, METRICS = 20011, 50021
COUNTED = "metrics-@n@"  # stands for the ports metrics-0, metrics-1, ... of the ranks
EXPORTED = "SENTINEL_ENV"  # the name of a variable that users add
TOLERATION = "sentinel-toleration"

_DNS = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_QUANTITY = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[mkMGTPE]?)$"
PLAIN_WORD = "^[a-zA-Z0-9_@%+=:,./-]+$"  # of a command, which no shell changes
_PATH = {"type": "string", "pattern": "^/[^:]*$"}
_CLAIM = {"type": "string", "pattern": _DNS}


@dataclass(frozen=True, eq=False)
class Setting:
    key: str  # in values.yaml
    option: str  # of `gen`, as argparse names it
    meaning: str
    schema: dict
    words: tuple = ()  # the words of `gen` that turn it on
    always: bool = False  # whether every manifest has it
    equals: str = None  # the value that turns it on; any that is not empty if it is None
    fields: dict = field(default_factory=dict)  # placeholder: its template expression
    unit: object = None  # of lists: the placeholder that names the repeated part

    @property
    def condition(self):
        return f'eq $.Values.{self.key} "{self.equals}"' if self.equals else f"$.Values.{self.key}"

    @property
    def loop(self):
        if self.schema["type"] == "object":
            return f"range $key, $value := $.Values.{self.key}"
        return f"range $item := $.Values.{self.key}"


def _number(least, most):
    return {"type": "integer", "minimum": least, "maximum": most}


def _text(pattern=None):
    return {"type": "string", **({"pattern": f"^$|{pattern}"} if pattern else {})}


def _amount(key, option, meaning, schema, placeholder, expression):
    word = "--" + option.replace("_", "-")
    return Setting(key, option, meaning, schema, (word, str(placeholder)), True, fields={placeholder: expression})


def _optional(key, option, meaning, schema, placeholder, word=None, expression=None):
    words = ("--" + option.replace("_", "-"), word or str(placeholder))
    expression = expression or (f"int $.Values.{key}" if isinstance(placeholder, int) else f"$.Values.{key}")
    return Setting(key, option, meaning, schema, words, fields={placeholder: expression})


def _switch(key, option, meaning):
    return Setting(key, option, meaning, {"type": "boolean"}, ("--" + option.replace("_", "-"),))


def _map(key, option, meaning, name, value, limits=None):
    words = ("--" + option.replace("_", "-"), f"{name}={value}")
    schema = {"type": "object", "additionalProperties": {"type": "string"}, **(limits or {})}
    return Setting(key, option, meaning, schema, words, fields={name: "$key", value: "$value"}, unit=name)


def _list(key, option, meaning, properties, word, fields, unit):
    item = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if key != "tolerations"],
        "additionalProperties": False,
    }
    words = ("--" + option.replace("_", "-"), word)
    return Setting(key, option, meaning, {"type": "array", "items": item}, words, fields=fields, unit=unit)


_RANKS = "(int $.Values.nprocPerNode)"
_EACH = "(ternary 8 2 (gt (int $.Values.gpus) 0))"
_MEMORY = f'($.Values.memory | default (printf "%dGi" (mul {_EACH} {_RANKS})))'
MIB, SHM = "farandole.mebibytes", "farandole.shm"
_UNITS = {"": 2**-20, "m": 2**-20 / 1000, **{u: 10**n / 2**20 for n, u in zip((3, 6, 9, 12, 15, 18), "kMGTPE")},
          **{f"{u}i": 2.0**n for n, u in zip((-10, 0, 10, 20, 30, 40), "KMGTPE")}}  # fmt: skip
WORDS = "farandole.words"
# A quantity in MiB, the default of `shm` as the generator computes it, and the command as one text with the quotes of a
# shell, as templates that the manifest includes.
HELPERS = f"""{{{{- define "{MIB}" -}}}}
{{{{- $text := toString . -}}}}
{{{{- $number := regexFind "^[0-9.]+(e[+][0-9]+)?" $text -}}}}
{{{{- $units := dict {" ".join(f'"{unit}" {mib!r}' for unit, mib in _UNITS.items())} -}}}}
{{{{- mulf (float64 $number) (get $units (trimPrefix $number $text)) -}}}}
{{{{- end -}}}}
{{{{- define "{SHM}" -}}}}
{{{{- $half := int64 (floor (divf (float64 (include "{MIB}" {_MEMORY})) 2)) -}}}}
{{{{- $mib := min (mul 1024 {_RANKS}) $half -}}}}
{{{{- if mod $mib 1024 }}}}{{{{ $mib }}}}Mi{{{{ else }}}}{{{{ div $mib 1024 }}}}Gi{{{{ end -}}}}
{{{{- end -}}}}
{{{{- define "{WORDS}" -}}}}
{{{{- range $at, $word := $.Values.command -}}}}
{{{{- if $at }}}} {{{{ end -}}}}
{{{{- if regexMatch "{PLAIN_WORD}" $word -}}}}
{{{{- $word -}}}}
{{{{- else -}}}}
'{{{{ replace "'" `'"'"'` $word }}}}'
{{{{- end -}}}}
{{{{- end -}}}}
{{{{- end -}}}}
"""
TOO_MUCH_SHM = f'ge (float64 (include "{MIB}" $.Values.shm)) (float64 (include "{MIB}" {_MEMORY}))'


def too_small(key):
    return f'lt (float64 (include "{MIB}" $.Values.{key})) 1.0'


_OR_NULL = {"type": ["string", "integer", "null"], "pattern": _QUANTITY}

AMOUNTS = [
    _amount("image", "image", "with farandole and the program in it", {"type": "string", "minLength": 1},
            "sentinel-image", "$.Values.image"),
    _amount("nprocPerNode", "nproc_per_node", "ranks in each pod", _number(1, PORTS - 1), RANKS,
            "int $.Values.nprocPerNode"),
    _amount("cpus", "cpus", "CPUs of each pod; null: one a rank", _OR_NULL, 7919,
            f"$.Values.cpus | default {_RANKS} | toJson"),
    _amount("memory", "memory", "memory of each pod; null: 2Gi a rank, 8Gi with GPUs", _OR_NULL, "7907Gi",
            _MEMORY),
    _amount("shm", "shm", "/dev/shm of each pod, part of its memory; null: 1Gi a rank, at most half of the memory",
            _OR_NULL, "3001Gi", f'$.Values.shm | default (include "{SHM}" $)'),
    _amount("maxRestarts", "max_restarts", "failures that are survived", _number(0, 1000), 907,
            "int $.Values.maxRestarts"),
    _amount("grace", "grace", "seconds from SIGTERM to SIGKILL", _number(1, 86400), GRACE, "int $.Values.grace"),
    _amount("runAs", "run_as", "user and group of the ranks", _number(1, 2**31 - 1), 2000011, "int $.Values.runAs"),
    _amount("portBase", "port_base", f"first of {PORTS} fixed ports", _number(1024, 65536 - PORTS), PORT,
            "int $.Values.portBase"),
]  # fmt: skip

OPTIONS = [
    _optional("gpus", "gpus", "GPUs of each pod", _number(0, 64), 67),
    _optional("deviceClass", "device_class", "GPUs by a claim of this DeviceClass; empty: by a device plugin", _text(),
              "sentinel-class"),
    _switch("computeDomain", "compute_domain", "a ComputeDomain: NVLink between the nodes"),
    _optional("efa", "efa", "EFA devices of each pod", _number(0, 99), 97),
    _switch("tcpFallback", "tcp_fallback", "with efa: a job that cannot use EFA runs over TCP, and warns"),
    _switch("spot", "spot", "spot capacity of Karpenter or EKS"),
    _optional("zone", "zone", "this zone; empty: all pods in one zone, whichever", _text(), "sentinel-zone"),
    _optional("maxRuntimeSeconds", "max_runtime", "after these the job is ended; 0: never", _number(0, 2**31 - 1),
              90001, "90001s"),
    _optional("ttl", "ttl", "seconds after which the finished job is deleted; 0: never", _number(0, 2**31 - 1), 70001),
    _optional("priorityClass", "priority_class", "PriorityClass of the pods", _text(), "sentinel-priority"),
    _optional("queue", "queue", "Kueue's local queue: the job waits there", _text(), "sentinel-queue"),
    _optional("requiredTopology", "required_topology", "with queue: all pods within one value of this node label",
              _text(), "sentinel-required"),
    _optional("preferredTopology", "preferred_topology", "the same, where it is possible", _text(),
              "sentinel-preferred"),
    *(Setting("locations", "locations", "zone or nodes: ranks have the location of their node in the network",
              {"type": "string", "enum": ["", *MODES]}, ("--locations", mode), equals=mode) for mode in MODES),
    _optional("locationLabels", "location_labels", "with locations nodes: labels of nodes, as A,B, the widest first",
              _text("^[-A-Za-z0-9_./]+(,[-A-Za-z0-9_./]+)*$"), "sentinel-levels"),
    _optional("schedulerName", "scheduler_name", "of the pods; empty: the cluster's default", _text(),
              "sentinel-scheduler"),
    *(Setting("gang", "gang", "a PodGroup of volcano or coscheduling: pods are scheduled together, or none is",
              {"type": "string", "enum": ["", *GANGS]}, ("--gang", gang), equals=gang) for gang in GANGS),
    _optional("serviceAccount", "service_account", "an existing one; empty: the chart makes one", _text(_DNS),
              "sentinel-account"),
    _optional("jobKeySecret", "job_key_secret", "Secret whose entry 'key' is the job's key", _text(_DNS),
              "sentinel-secret"),
    _switch("readOnlyRoot", "read_only_root", "a read-only root file system, and /tmp on the node"),
    _switch("hostNetwork", "host_network", "the node's own network"),
    _switch("networkPolicy", "network_policy", "only the job's own ports, between its own pods"),
    Setting("allowEgress", "allow_egress", "with networkPolicy: TCP ports that may be reached anywhere",
            {"type": "array", "items": _number(1, 65535)}, ("--allow-egress", "30203"), fields={30203: "int $item"},
            unit=30203),
    Setting("monitoring", "monitoring", "each rank's metrics, and a PodMonitor", {"type": "boolean"},
            ("--monitoring", "--metrics-port", str(METRICS)), fields={METRICS: "int $.Values.metricsPort"}),
    _switch("jsonLogs", "json_logs", "logs with one JSON object a line"),
    _map("env", "env", "variables of the ranks", EXPORTED, "sentinel-text"),
    _map("labels", "label", "labels of every object and pod", "sentinel-label", "sentinel-labelled",
         {"propertyNames": {"not": {"enum": list(RESERVED)}}}),
    _map("annotations", "annotation", "annotations of every pod", "sentinel-note", "sentinel-noted"),
    _map("nodeSelector", "node_selector", "only nodes with these labels", "sentinel-node", "sentinel-noded"),
    _map("systemSelector", "system_selector", "the same for pods without ranks", "sentinel-system",
         "sentinel-systemed"),
    _list("tolerations", "toleration", "taints that do not keep the pods away",
          {name: {"type": "string"} for name in ("key", "operator", "value", "effect")},
          f"{TOLERATION}=x:NoSchedule", {}, TOLERATION),
    _list("claims", "pvc", "existing claims to mount", {"claim": _CLAIM, "path": _PATH},
          "sentinel-claim:/sentinel-where", {"sentinel-claim": "$item.claim", "/sentinel-where": "$item.path"},
          "sentinel-claim"),
    _list("readOnlyClaims", "pvc", "the same, read only", {"claim": _CLAIM, "path": _PATH},
          "sentinel-reading:/sentinel-read:ro", {"sentinel-reading": "$item.claim", "/sentinel-read": "$item.path"},
          "sentinel-reading"),
    _list("newClaims", "new_pvc", "claims to make and to mount",
          {"claim": _CLAIM, "path": _PATH, "size": {"type": "string", "pattern": _QUANTITY}},
          "sentinel-new:/sentinel-made:4001Gi",
          {"sentinel-new": "$item.claim", "/sentinel-made": "$item.path", "4001Gi": "$item.size"}, "sentinel-new"),
    _list("configMaps", "config_map", "ConfigMaps to mount", {"name": _CLAIM, "path": _PATH},
          "sentinel-map:/sentinel-script", {"sentinel-map": "$item.name", "/sentinel-script": "$item.path"},
          "sentinel-map"),
]  # fmt: skip

COMMAND = Setting("command", "command", "the command of each rank",
                  {"type": "array", "items": {"type": "string"}, "minItems": 1}, ("--", "sentinel-command"), True,
                  fields={"sentinel-command": "$item"}, unit="sentinel-command")  # fmt: skip
METRICS_SETTING = Setting("metricsPort", "metrics_port", "with monitoring: of local rank 0", _number(1024, 65535))
NODES_SETTING = Setting("nnodes", "nnodes", "pods", _number(1, 99999), always=True)
LEAST_SETTING = Setting("minNodes", "nnodes", "0, or the least number of pods of an elastic job", _number(0, 99999))

_N, _M = "(int $.Values.nnodes)", "(int $.Values.minNodes)"
# Numbers that the generator derives: placeholder: (expression, the number of a variant's own amounts)
DERIVED = {
    NODES: ("int $.Values.nnodes", lambda v: v["nodes"]),
    NODES - 1: (f"sub {_N} 1", lambda v: v["nodes"] - 1),
    NODES + 1: (f"add {_N} 1", lambda v: v["nodes"] + 1),
    NODES * RANKS: (f"mul {_N} {_RANKS}", lambda v: v["nodes"] * RANKS),
    LEAST: ("int $.Values.minNodes", lambda v: v["least"]),
    LEAST + 1: (f"add {_M} 1", lambda v: v["least"] + 1),
    NODES - LEAST: (f"sub {_N} {_M}", lambda v: v["nodes"] - v["least"]),
    GRACE: ("int $.Values.grace", lambda v: v["grace"]),
    GRACE - 5: ("max 1 (sub (int $.Values.grace) 5)", lambda v: v["grace"] - 5),
    PORT + PORTS - 1: (f"add (int $.Values.portBase) {PORTS - 1}", lambda v: PORT + PORTS - 1),
    METRICS + RANKS - 1: (f"sub (add (int $.Values.metricsPort) {_RANKS}) 1", lambda v: METRICS + RANKS - 1),
}
