"""From options to the text of a manifest: built, overridden, checked, and written."""

from . import checks, katib, operators, plain_kinds, reading
from .document import Map, load, render
from .errors import WrongCombination
from .pods import has_controller_uid, key_secret

_BUILDERS = {
    "job": plain_kinds.job,
    "jobset": plain_kinds.jobset,
    "statefulset": plain_kinds.statefulset,
    "deployment": plain_kinds.deployment,
    "lws": plain_kinds.lws,
    "mpijob": operators.mpijob,
    "pytorchjob": operators.pytorchjob,
    "tfjob": operators.tfjob,
    "trainjob": operators.trainjob,
    "rayjob": operators.rayjob,
    "katib": katib.katib,
}


def _step(place, part, path):
    if isinstance(place, list) and part.isdigit() and int(part) < len(place):
        return int(part)
    if isinstance(place, dict):
        return part
    raise WrongCombination(f"--set {path}: there is no '{part}' to enter")


def override(documents, path, text):
    """--set Job.spec.backoffLimit=0: the first word is the kind, a number indexes a list, '\\.' is a dot in a name."""
    parts = [part.replace("\0", ".") for part in path.replace("\\.", "\0").split(".")]
    chosen = [document for document in documents if document["kind"].lower() == parts[0].lower()]
    if not chosen or len(parts) < 2:
        kinds = ", ".join(dict.fromkeys(document["kind"] for document in documents))
        raise WrongCombination(
            f"--set {path}: begin with one of the kinds {kinds}, such as {documents[0]['kind']}.metadata..."
        )
    value = next(iter(load(text)), None)
    for document in chosen:
        place = document
        for part in parts[1:-1]:
            key = _step(place, part, path)
            if isinstance(place, dict) and key not in place:
                place[key] = Map()
            place = place[key]
        place[_step(place, parts[-1], path)] = value


def header(o):
    lines = ["Made by this command; change the command and not the file.", "  " + o.line]
    if o.job_key_secret or not has_controller_uid(o):
        namespace = f" -n {o.namespace}" if o.namespace else ""
        lines += [
            "The job's key is a Secret and stands in no file. Make it once, before the job:",
            f"  kubectl create secret generic {key_secret(o)}{namespace} --from-literal=key=$(openssl rand -hex 16)",
        ]
    if o.elastic and o.kind in ("job", "deployment", "pytorchjob"):
        lines += [
            f"Elastic: {o.min_nodes} to {o.max_nodes} pods. Who loses one goes on from the last commit, where the "
            "program has commits (docs/elastic.md); else all ranks begin again from their checkpoint."
        ]
    return "\n".join(lines)


def documents_of(o):
    documents = _BUILDERS[o.kind](o)
    for path, text in o.set:
        override(documents, path, text)
    faults = checks.faults(documents)
    if faults:
        raise WrongCombination("the manifest would not be valid:\n  " + "\n  ".join(faults))
    return documents


def of_words(words):
    o = reading.read(words)
    return render(documents_of(o), header(o))
