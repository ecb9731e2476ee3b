"""Regenerates the generated manifests and charts: the second line of each is the command that makes it.

python examples/kubernetes/regenerate.py            # all
python examples/kubernetes/regenerate.py --check    # prints which differ, and changes nothing
"""

import shlex
import sys
from pathlib import Path

from farandole.integrations.kubernetes import generate, reading
from farandole.integrations.kubernetes.chart import command
from farandole.integrations.kubernetes.document import load, render

HERE = Path(__file__).resolve().parent
COMMAND = "#   farandole kubernetes gen "
CHART = "#   farandole kubernetes chart "
BASE = HERE / "k8s" / "base" / "job.yaml"
# Components of kustomize for that job: the option of `gen` that each stands for.
COMPONENTS = {
    "kueue": ["--queue", "team"],
    "monitoring": ["--monitoring"],
    "read-only-root": ["--read-only-root"],
    "spot": ["--spot"],
    "volcano": ["--gang", "volcano"],
}


def _commands(start):
    """Yields (file, words of its command) for every file whose second line begins like this."""
    for path in sorted(HERE.rglob("*.yaml")):
        line = next((line for line in path.read_text().splitlines()[:2] if line.startswith(start)), None)
        if line:
            yield path, shlex.split(line[len(start) :])


def generated():
    """Yields (file, words of its command) for every generated manifest."""
    return _commands(COMMAND)


def charts():
    """Yields (file, text) for every file of every chart."""
    for path, words in _commands(CHART):
        for name, text in command.files_of(words, reading.read(words), command.OWN["--chart-version"]).items():
            yield path.parents[1] / name, text


def added(before, after):
    """The strategic merge patch from one value to another. Lists whose items have names are merged by them."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = {key: added(before.get(key), value) for key, value in after.items() if before.get(key) != value}
        return {**found, **{key: None for key in before if key not in after}}
    named = isinstance(before, list) and all(isinstance(one, dict) and "name" in one for one in [*before, *after])
    if named:
        old = {one["name"]: one for one in before}
        return [
            {"name": one["name"], **added(old.get(one["name"], {}), one)}
            for one in after
            if old.get(one["name"]) != one
        ]
    return after


def with_options(options):
    """The documents of the base's own command with these options too, by kind and name."""
    words = next(words for path, words in generated() if path == BASE)
    at = words.index("--")
    documents = load(generate([*words[:at], *options, *words[at:]]))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def components():
    """Yields (file, text) for every file of the generated components."""
    plain = with_options([])
    for name, options in COMPONENTS.items():
        whole = with_options(options)
        new = [one for key, one in whole.items() if key not in plain]
        patches = []
        for kind, about in plain.keys() - whole.keys():
            gone = {"$patch": "delete", "apiVersion": plain[kind, about]["apiVersion"], "kind": kind}
            patches.append({"patch": render([{**gone, "metadata": {"name": about}}]).removeprefix("---\n")})
        for key, one in whole.items():
            if key in plain and plain[key] != one:
                patch = {"apiVersion": one["apiVersion"], "kind": key[0], "metadata": {"name": key[1]}}
                change = added(plain[key], one)
                patch["metadata"].update(change.pop("metadata", {}))
                patches.append({"patch": render([{**patch, **change}]).removeprefix("---\n")})
        made = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
        made.update({"resources": ["new.yaml"]} if new else {}, **({"patches": patches} if patches else {}))
        header = (
            f"What `gen` adds with {' '.join(options)}; made by regenerate.py. Add it to an overlay:\n"
            f"  components: [../../components/{name}]"
        )
        folder = HERE / "k8s" / "components" / name
        yield folder / "kustomization.yaml", render([made], header).replace("\n---\n", "\n", 1)
        if new:
            yield folder / "new.yaml", render(new, f"The objects that {' '.join(options)} adds; made by regenerate.py.")


def main():
    made = [*((path, generate(words)) for path, words in generated()), *charts(), *components()]
    differ = [(path, text) for path, text in made if not path.exists() or text != path.read_text()]
    for path, text in differ:
        print(path.relative_to(HERE))
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if differ and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
