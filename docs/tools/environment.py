"""Writes docs/environment.md from the table of settings in src/base/config.h and from a table of launchers' variables.

python3 docs/tools/environment.py           writes the page
python3 docs/tools/environment.py --check   ends with 1 if the page is stale
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = "docs/environment.md"

# Variables of launchers and pods: src/base/config.cpp has their names, this table their meaning.
LAUNCHER = {
    "RANK": "This process's number. With `FARANDOLE_SIZE`.",
    "SIZE": "How many processes the job has.",
    "LOCAL_RANK": "The number among the processes of this host. Empty: found out.",
    "LOCAL_SIZE": "How many processes this host has. Empty: found out.",
    "CROSS_RANK": "Accepted and ignored: the library counts hosts itself.",
    "CROSS_SIZE": "As `FARANDOLE_CROSS_RANK`.",
    "HOSTNAME": "As `FARANDOLE_CROSS_RANK`.",
    "NODE_RANK": "The number of this node (pod), for `farandole run`. With `FARANDOLE_NNODES`.",
    "NNODES": "How many nodes (pods) the job has.",
    "NODE_COUNT": "The same as `FARANDOLE_NNODES`; `farandole run` sets it for its ranks.",
    "RANK_FROM": "`hostname`: the number of this pod is the one at the end of its host name (StatefulSet).",
    "ORDINAL_START": "The number of the first pod of a StatefulSet that does not begin with 0.",
    "JOBSET_JOBS": "How many Jobs a JobSet has.",
    "JOBSET_JOB_INDEX": "The number of this pod's Job in the JobSet.",
    "JOBSET_PODS_PER_JOB": "How many pods each Job of the JobSet has.",
    "POD_NAME": "The name of this pod, for error texts (downward API).",
    "NODE_NAME": "The name of this pod's node, for error texts (downward API).",
    "IFACE": "The same as `FARANDOLE_INTERFACES`.",
    "ELASTIC": "Set by the launcher of an elastic job: where its ranks reach it.",
    "WORKER": "Set by the launcher of an elastic job: the number of this process.",
    "RESTART": "Set by `farandole run`: how often all ranks have been started again.",
    "RUN_ID": "Set by `farandole run` and inherited by all that its ranks start: if `farandole run` is killed, these "
    "processes are ended by it.",
    "KEY_IS_DERIVED": "`1`: set by `farandole run` if the key that it passes on is no secret.",
}

TYPES = {
    "Bytes": "`4096`, `64K`, `1M` or `2G` (powers of 1024)",
    "Count": "a whole number, 0 or more",
    "Seconds": "`0.5`, `10`, `100ms` or `2m`",
    "Flag": "`0` or `1` (also false, true, off, on, no, yes)",
    "Text": "text",
}

HEAD = """# Environment variables

<!-- Made by docs/tools/environment.py; change that, or src/base/config.h. -->

Every setting of the library has a variable. `farandole config` prints the values in force and where each came from;
`farandole config --json` prints the same, one JSON object a line. An option in the program
(`fdl_world_options.options`, `pg_options` of `torch.distributed`) wins over the variable, the variable over its alias,
the alias over the default. A value that cannot be read is an error that quotes it (exit code 78).

**=** marks what must be alike on all ranks: a difference ends the start on every rank with one sentence that names two
ranks.

"""


LAUNCHERS = """## Launchers and pods

These variables give a process its rank. [Launchers](launchers.md) has the variables of other launchers, which need
none of these.
"""

TAIL = """An option of `farandole run` that is not on its command line is taken from `FARANDOLE_RUN_<OPTION>`:
`FARANDOLE_RUN_NPROC_PER_NODE=8` is `--nproc-per-node 8`.

`farandole run` sets `OMP_NUM_THREADS` for several ranks of a host where it is not set: [the command](cli.md).

Horovod's variables: [the table in From Horovod](from-horovod.md#horovods-variables).
"""


def knobs(repository):
    """The rows of FDL_KNOBS: (name, type, default, aliases, meaning)."""
    with open(os.path.join(repository, "src/base/config.h")) as file:
        text = file.read()
    start = text.index("#define FDL_KNOBS(KNOB)")
    table = text[start : text.index("// clang-format on", start)]
    row = re.compile(r'KNOB\((\w+),\s*(\w+),\s*"([^"]*)",\s*"([^"]*)",((?:[\s\\]*"(?:[^"\\]|\\.)*")+)\s*\)')
    for found in row.finditer(table):
        name, kind, default, aliases, meaning = found.groups()
        words = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', meaning))
        yield name, kind, default, [one for one in aliases.split(",") if one], words.replace('\\"', '"')


def _list(repository, opening):
    with open(os.path.join(repository, "src/base/config.cpp")) as file:
        text = file.read()
    start = text.index(opening)
    return re.findall(r'"(\w+)"', text[start : text.index("}", start)])


def page(repository):
    """The text of docs/environment.md."""
    alike = set(_list(repository, "kAlike[] = {"))
    rows = list(knobs(repository))
    launcher = _list(repository, "for (std::string_view name : {")
    if set(launcher) != set(LAUNCHER):
        differ = ", ".join(sorted(set(launcher) ^ set(LAUNCHER)))
        raise SystemExit(f"docs/tools/environment.py: LAUNCHER and src/base/config.cpp differ: {differ}")
    if not alike <= {row[0] for row in rows}:
        raise SystemExit("docs/tools/environment.py: the table of src/base/config.h could not be read")
    lines = ["## Settings", "", "| variable | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, aliases, meaning in rows:
        mark = " **=**" if name in alike else ""
        also = f" Also {', '.join(f'`{one}`' for one in aliases)}." if aliases else ""
        shown = f"`{default}`" if default else "(empty)"
        words = meaning.replace("|", "\\|") + also
        lines.append(f"| `FARANDOLE_{name.upper()}`{mark} | {kind} | {shown} | {words} |")
    lines += ["", "| type | is written |", "|---|---|"]
    lines += [f"| {kind} | {form} |" for kind, form in TYPES.items()]
    lines += ["", LAUNCHERS, "| variable | meaning |", "|---|---|"]
    lines += [f"| `FARANDOLE_{name}` | {meaning} |" for name, meaning in LAUNCHER.items()]
    return HEAD + "\n".join([*lines, "", TAIL])


def main():
    repository = os.path.dirname(os.path.dirname(HERE))
    text = page(repository)
    path = os.path.join(repository, PAGE)
    if sys.argv[1:] == ["--check"]:
        with open(path) as file:
            if file.read() == text:
                return 0
        print(f"{PAGE} is stale; run python3 docs/tools/environment.py", file=sys.stderr)
        return 1
    with open(path, "w") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
