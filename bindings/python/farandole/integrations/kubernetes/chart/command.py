"""The command `farandole kubernetes chart`: writes a Helm chart."""

import json
import re
import shlex
import sys
from pathlib import Path

from .. import reading, versions
from ..document import comment
from ..errors import WrongCombination
from ..gang import QUEUE
from ..hardware import tolerations
from ..options import KINDS, PORTS, parser
from ..pods import has_controller_uid
from . import settings
from .merge import Merge
from .variants import ELASTIC_FLAG, Variants

USAGE = """usage: farandole kubernetes chart KIND --directory FOLDER [--chart-version VERSION] [options] -- COMMAND...
Writes a Helm chart into FOLDER. KIND and the options are those of `farandole kubernetes gen`. They are the defaults of
the chart's values; options that are no value, such as --set, become a part of its templates."""
OWN = {"--directory": None, "--chart-version": "0.1.0"}
LONGEST_NAME = 40  # the names of pods add the kind's own parts


def _own_options(words):
    """(the command's own options, the words of `gen`)"""
    own, options, rest = dict(OWN), *reading.split(words)
    left, given = [], iter(options)
    for word in given:
        name, equals, value = word.partition("=")
        if name in own:
            own[name] = value if equals else next(given, None)
        else:
            left.append(word)
    if not own["--directory"]:
        raise WrongCombination("--directory FOLDER is missing: the chart is written there")
    return own, [*left, "--", *rest] if rest else left


def _fixed(words, keys):
    """The words of the options that are no value of the chart."""
    made = parser()
    given = reading.given_options(words)
    read = vars(made.parse_args(words))
    fixed = []
    for action in made._actions:
        if action.dest not in given or action.dest in keys or not action.option_strings:
            continue
        value = read[action.dest]
        for one in value if isinstance(value, list) else [value]:
            fixed += action.option_strings[-1:] if one is True else [action.option_strings[-1], str(one)]
    return fixed


def _claims(words, *names):
    return [dict(zip(names, word.split(":"))) for word in words]


def _tolerations(o):
    return [dict(one) for one in tolerations(o) if one["key"] not in (o.gpu_resource, "aws.amazon.com/efa")]


def defaults(o, given):
    """The defaults of all values, from the options of the command line."""
    seconds = reading.values.seconds(o.max_runtime) if o.max_runtime else 0
    read_only = [word for word in o.pvc if word.endswith(":ro")]
    own = {
        "image": o.image, "command": o.command, "nnodes": o.max_nodes, "minNodes": o.min_nodes if o.elastic else 0,
        "nprocPerNode": o.processes, "maxRestarts": o.max_restarts, "grace": o.grace, "runAs": o.run_as,
        "portBase": o.port_base, "gpus": o.gpus, "efa": o.efa, "maxRuntimeSeconds": seconds, "ttl": o.ttl or 0,
        "metricsPort": o.metrics_port, "env": o.env, "labels": o.label, "annotations": o.annotation,
        "nodeSelector": o.node_selector, "systemSelector": o.system_selector, "tolerations": _tolerations(o),
        "allowEgress": o.allow_egress, "claims": _claims((w for w in o.pvc if w not in read_only), "claim", "path"),
        "readOnlyClaims": _claims(read_only, "claim", "path"),
        "newClaims": _claims(o.new_pvc, "claim", "path", "size"),
        "configMaps": _claims(o.config_map, "name", "path"),
    }  # fmt: skip
    for key in ("cpus", "memory", "shm"):
        own[key] = getattr(o, key) if key in given or o.instance_type else None
    for one in settings.OPTIONS:
        if one.key not in own:
            value = getattr(o, one.option)
            own[one.key] = value if one.schema["type"] == "boolean" else value or ""
    if o.instance_type:
        own["nodeSelector"] = {"node.kubernetes.io/instance-type": o.instance_type, **own["nodeSelector"]}
    return own


def _chosen(variants):
    """The settings that this kind has, each once."""
    kept = [settings.COMMAND, settings.NODES_SETTING, *variants.amounts]
    flags = [flag.setting for flag in variants.flags if flag.setting]
    if ELASTIC_FLAG in variants.always or any(flag.name == ELASTIC_FLAG for flag in variants.flags):
        kept.insert(2, settings.LEAST_SETTING)
    kept += flags
    if any(one.key == "monitoring" for one in flags):
        kept.append(settings.METRICS_SETTING)
    return list({one.key: one for one in kept}.values())


def _in_terms_of_values(text, chosen):
    """A message of the generator with the names of values instead of options."""
    for one in sorted(chosen, key=lambda one: len(one.option), reverse=True):
        text = text.replace("--" + one.option.replace("_", "-"), one.key)
    return text


def _refusals(variants, chosen):
    """Lines that refuse values as the generator refuses options."""
    keys = {one.key for one in chosen}
    rules = [
        (f"gt (len $.Release.Name) {LONGEST_NAME}", f"the name of the release has more than {LONGEST_NAME} characters"),
        (
            'not (regexMatch "^[a-z][-a-z0-9]*$" $.Release.Name)',
            "the name of the release may only have small letters, digits and '-', and begins with a letter, because a "
            "Service has it too",
        ),
    ]
    if "minNodes" in keys:
        rules.append(("gt (int $.Values.minNodes) (int $.Values.nnodes)", "minNodes is above nnodes"))
    if {"minNodes", "queue"} <= keys:
        same = "and $.Values.queue (eq (int $.Values.minNodes) (int $.Values.nnodes))"
        rules.append((same, "minNodes equals nnodes with queue: Kueue demands a minimum that is below nnodes"))
    if "tcpFallback" in keys:
        named = 'and $.Values.efa (not $.Values.tcpFallback) (hasKey $.Values.env "FARANDOLE_TRANSPORT")'
        rules.append((named, "env.FARANDOLE_TRANSPORT with efa: set tcpFallback, and it is yours"))
    if "gpus" in keys:
        more = "and (int $.Values.gpus) (gt (int $.Values.nprocPerNode) (int $.Values.gpus))"
        rules.append((more, "nprocPerNode is above gpus: ranks would share a GPU"))
    if "shm" in keys:
        whole = f"and $.Values.shm ({settings.TOO_MUCH_SHM})"
        rules.append((whole, "shm leaves nothing of memory: files in /dev/shm count as the container's memory"))
    for key in sorted({"memory", "shm"} & keys):
        rules.append((f"and $.Values.{key} ({settings.too_small(key)})", f"{key} is less than 1 MiB; give Mi or Gi"))
    if {"spot", "grace"} <= keys:
        late = "and $.Values.spot (gt (int $.Values.grace) 110)"
        rules.append((late, "grace above 110 with spot: AWS removes the node 120 s after its notice"))
    if {"monitoring", "portBase"} <= keys:
        first, end = "(int $.Values.metricsPort)", "(add (int $.Values.metricsPort) (int $.Values.nprocPerNode))"
        among = f"(lt {first} (add (int $.Values.portBase) {PORTS})) (gt {end} (int $.Values.portBase))"
        rules.append((f"and $.Values.monitoring {among}", "metricsPort lies in the job's own ports; move one of them"))
        rules.append((f"and $.Values.monitoring (gt {end} 65536)", "metricsPort is too high for so many ranks"))
    if {"labels", "queue"} <= keys:
        both = f"and $.Values.queue (hasKey $.Values.labels {json.dumps(QUEUE)})"
        rules.append((both, f"labels.{QUEUE} with queue: both name a queue; leave the label out"))
    rules += [(condition, _in_terms_of_values(text, chosen)) for condition, text in variants.refused]
    return [f"{{{{- if {condition} }}}}{{{{ fail {json.dumps(text)} }}}}{{{{- end }}}}" for condition, text in rules]


def _schema(chosen, kind):
    properties = {one.key: {"description": one.meaning, **one.schema} for one in chosen}
    if kind == "deployment":
        properties["minNodes"]["minimum"] = 1
    if kind == "katib":  # which runs the command in a shell without quotes
        words = {**properties["command"]["items"], "pattern": settings.PLAIN_WORD}
        properties["command"] = {**properties["command"], "items": words}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {**properties, "global": {"type": "object"}},
        "required": ["image", "command", "nnodes"],
        "additionalProperties": False,
    }


def _values_file(chosen, given):
    lines = ["# The values of this chart. values.schema.json has their types and limits."]
    for one in chosen:
        lines += [f"# {one.meaning}", f"{one.key}: {json.dumps(given[one.key], ensure_ascii=False)}"]
    return "\n".join(lines) + "\n"


def _notes(o):
    lines = []
    if not has_controller_uid(o):
        lines += [
            "The job's key is a Secret and is in no file. Create it once, before the job:",
            "  kubectl create secret generic -n {{ .Release.Namespace }} "
            + ('{{ .Values.jobKeySecret | default (printf "%s-key" .Release.Name) }}')
            + " --from-literal=key=$(openssl rand -hex 16)",
        ]
    lines += [
        "Logs, merged by rank:",
        "  farandole kubernetes logs {{ .Release.Name }} -n {{ .Release.Namespace }} --follow",
    ]
    return "\n".join(lines) + "\n"


def files_of(words, o, version):
    """The files of the chart, name to text; `o`: what the words say. WrongCombination as from `gen`."""
    if o.namespace:
        raise WrongCombination("--namespace with chart: the namespace is Helm's; give it to `helm install --namespace`")
    if o.kind == "mpijob" and o.implementation == "mpich":
        raise WrongCombination(
            "--implementation mpich with chart: Hydra takes the names of all variables in one word, which a chart "
            "cannot write; use `gen`"
        )
    options, _ = reading.split(words)
    given = reading.given_options(options)
    own = {"name", "instance_type", *(one.option for one in (*settings.AMOUNTS, *settings.OPTIONS))}
    variants = Variants(o.kind, _fixed(options, own | {"nnodes", "metrics_port"}))
    chosen = _chosen(variants)
    line = shlex.join(["farandole", "kubernetes", "chart", *words])
    header = f"Generated by this command; change the command, not the file.\n  {line}\n{versions.of(o)}"
    template = ["\n".join(comment(header, 0)), *_refusals(variants, chosen), *Merge(variants).documents()]
    about = {
        "apiVersion": "v2", "name": f"farandole-{o.kind}", "version": version, "type": "application",
        "description": KINDS[o.kind],
    }  # fmt: skip
    if has_controller_uid(o):
        about["kubeVersion"] = ">=1.31.0-0"
    return {
        "Chart.yaml": "".join(f"{key}: {json.dumps(value)}\n" for key, value in about.items()),
        "values.yaml": _values_file(chosen, defaults(o, given)),
        "values.schema.json": json.dumps(_schema(chosen, o.kind), indent=2) + "\n",
        "templates/_amounts.tpl": settings.HELPERS,
        "templates/manifest.yaml": "\n".join(template) + "\n",
        "templates/NOTES.txt": _notes(o),
    }


def main(words):
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 64
    own, rest = _own_options(words)
    folder = Path(own["--directory"])
    o = reading.read(rest, settings.NAMESPACE)
    if not re.fullmatch(r"\d+\.\d+\.\d+([-+][-+.0-9A-Za-z]+)?", own["--chart-version"] or ""):
        raise WrongCombination(f"--chart-version {own['--chart-version']} is no version such as 0.1.0")
    for name, text in files_of(rest, o, own["--chart-version"]).items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError as error:
            raise WrongCombination(f"--directory {folder}: {error.strerror}; name a folder that can be made") from None
    for warning in o.warnings:
        print(f"farandole kubernetes chart: warning: {warning}", file=sys.stderr)
    print(f"{folder}: try `helm template train {folder}`", file=sys.stderr)
    return 0
