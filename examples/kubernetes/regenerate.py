"""Regenerates the generated manifests: the second line of each is the command that makes it.

python examples/kubernetes/regenerate.py            # all
python examples/kubernetes/regenerate.py --check    # prints which differ, and changes nothing
"""

import shlex
import sys
from pathlib import Path

from farandole.integrations.kubernetes import generate

HERE = Path(__file__).resolve().parent
COMMAND = "#   farandole kubernetes gen "


def generated():
    """Yields (file, words of its command) for every generated manifest."""
    for path in sorted(HERE.rglob("*.yaml")):
        line = next((line for line in path.read_text().splitlines()[:2] if line.startswith(COMMAND)), None)
        if line:
            yield path, shlex.split(line[len(COMMAND) :])


def main():
    differ = [(path, text) for path, words in generated() if (text := generate(words)) != path.read_text()]
    for path, text in differ:
        print(path.relative_to(HERE))
        if "--check" not in sys.argv:
            path.write_text(text)
    return 1 if differ and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
