"""The command `farandole kubernetes`: gen, chart, logs, status and topology."""

import sys

from .errors import WrongCombination
from .output import guarded

USAGE = """usage: farandole kubernetes gen KIND --image IMAGE [options] -- COMMAND...   print a manifest
       farandole kubernetes chart KIND --directory FOLDER [options] -- COMMAND...   a Helm chart of it
       farandole kubernetes logs NAME [-n NAMESPACE] [--follow]             the pods' logs, merged by rank
       farandole kubernetes status NAME [-n NAMESPACE] [--wait]             the pods, and why they wait
       farandole kubernetes topology [--labels A,B,...] [--from FILE]       the locations of the nodes, as a file
Each has --help. `farandole k8s` is the same."""

USAGE_ERROR = 64  # as of the program `farandole`


def main(words=None):
    words = sys.argv[1:] if words is None else words
    return guarded("farandole kubernetes", lambda: _run(words))


def _prepare_output(words):
    """A manifest is UTF-8 whatever the locale. Other texts have escapes for what the terminal cannot show."""
    change = {"encoding": "utf-8"} if words[:1] == ["gen"] and not {"-h", "--help"} & {*words} else {}
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace", **change)


def _run(words):
    _prepare_output(words)
    for word in words:
        if not word.isascii() and any("\ud800" <= one <= "\udfff" for one in word):
            print(f"farandole kubernetes: the argument {word!r} is not UTF-8", file=sys.stderr)
            return USAGE_ERROR
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else USAGE_ERROR
    try:
        if words[0] == "gen":
            from .generator import with_warnings

            text, warnings = with_warnings(words[1:])
            sys.stdout.write(text)
            for warning in warnings:
                print(f"farandole kubernetes gen: warning: {warning}", file=sys.stderr)
            return 0
        if words[0] == "chart":
            from .chart import command

            return command.main(words[1:])
        if words[0] in ("logs", "status"):
            from .live import command

            return command.main(words[0], words[1:])
        if words[0] == "topology":
            from .live import topology

            return topology.main(words[1:])
    except WrongCombination as error:
        print(f"farandole kubernetes {words[0]}: {error}", file=sys.stderr)
        return USAGE_ERROR
    print(
        f"farandole kubernetes: '{words[0]}' is none of gen, chart, logs, status and topology\n{USAGE}", file=sys.stderr
    )
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
