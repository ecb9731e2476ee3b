"""Regenerates the generated manifests and charts: the second line of each is the command that makes it.

python examples/kubernetes/regenerate.py            # all
python examples/kubernetes/regenerate.py --check    # prints which differ, and changes nothing
"""

import shlex
import sys
from pathlib import Path

from farandole.integrations.kubernetes import generate
from farandole.integrations.kubernetes.chart.command import files_of

HERE = Path(__file__).resolve().parent
COMMAND = "#   farandole kubernetes gen "
CHART = "#   farandole kubernetes chart "


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
        for name, text in files_of(words).items():
            yield path.parents[1] / name, text


def main():
    made = [*((path, generate(words)) for path, words in generated()), *charts()]
    differ = [(path, text) for path, text in made if text != path.read_text()]
    for path, text in differ:
        print(path.relative_to(HERE))
        if "--check" not in sys.argv:
            path.write_text(text)
    return 1 if differ and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
