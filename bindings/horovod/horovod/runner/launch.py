"""horovodrun: `farandole run` with the name and the options of Horovod's launcher."""

import difflib
import os
import shlex
import sys
from importlib import util

import farandole
from farandole import hosts, launcher
from farandole.integrations.kubernetes.output import guarded

from .. import version
from .config_file import read_config_file
from .discovery import discovered_slots, follow
from .options import BY_FLAG, BY_KEY, OPTIONS

USAGE = "horovodrun -np 2 [-H localhost:2] [options] python train.py"
_EX_USAGE = 64


class UsageError(ValueError):
    """The command line is malformed or cannot be executed. The text contains the remedy."""


class Job:
    """The meaning of a command line."""

    def __init__(self):
        self.run = {}  # flags of `farandole run`
        self.variables = {}
        self.own = {}
        self.without_meaning = []
        self.command = []

    def take(self, option, values, spelling):
        """Stores an option. `spelling`: how the user wrote it, for messages."""
        kind, name = option.sets
        try:
            value = option.make(*values) if option.make else (values[0] if values else None)
        except ValueError:
            raise UsageError(f"{spelling}: '{' '.join(values)}' is not a number") from None
        if kind == "nothing":
            self.without_meaning.append(f"{spelling} does nothing here: {name}")
        else:
            {"run": self.run, "variable": self.variables, "own": self.own}[kind][name] = value


def nearest(word, known):
    """ "; do you mean --x?", or nothing."""
    close = difflib.get_close_matches(word, known, 1, 0.6)
    return f"; do you mean {close[0]}?" if close else ""


def parse(words):
    """The job of a command line. Options end at "--" or at the first word that is not an option."""
    job = Job()
    words = list(words)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        flag, equals, rest = word.partition("=") if word.startswith("--") else (word, "", "")
        option = BY_FLAG.get(flag)
        if option is None:
            raise UsageError(f"unknown option {flag}{nearest(flag, BY_FLAG)}")
        if equals:
            words.insert(0, rest)
        if len(words) < option.values or (equals and not option.values):
            raise UsageError(f"{flag} is followed by {option.values or 'no'} value{'' if option.values == 1 else 's'}")
        values, words = words[: option.values], words[option.values :]
        job.take(option, values, flag)
    job.command = words
    return job


def take_config_file(job, path):
    """Adds the options of a configuration file that the command line does not set."""
    from_file = Job()
    for key, value in read_config_file(path).items():
        option = BY_KEY.get(key)
        if option is None:
            raise UsageError(f"{path}: unknown key {key}{nearest(key, BY_KEY)}")
        if option.values == 0 and option.sets[0] == "variable":  # a switch
            if value.lower() not in ("true", "false", "yes", "no", "on", "off", "0", "1"):
                raise UsageError(f"{path}: {key} is true or false, not '{value}'")
            on = value.lower() in ("true", "yes", "on", "1")
            from_file.variables[option.sets[1]] = option.make() if on else {"0": "1", "1": "0"}[option.make()]
        else:
            from_file.take(option, [value], f"{path}: {key}")
    job.variables = {**from_file.variables, **job.variables}
    job.without_meaning += from_file.without_meaning


# ---- Hosts ----------------------------------------------------------------------------------------------------------


def check_hosts(job):
    """UsageError, with the remedy, if ranks are to run on other hosts."""
    count = int(job.run["-np"])
    script = job.own.get("host_discovery_script")
    try:
        capacity = (
            discovered_slots(script) if script else hosts.local_slots(job.own.get("hosts"), job.own.get("hostfile"))
        )
    except hosts.HostsError as error:
        raise UsageError(f"{error}{instead(error.hosts, job.command) if error.hosts else ''}") from None
    except OSError as error:
        raise UsageError(f"the host file cannot be read: {error}") from None
    if capacity is not None and count > capacity:
        raise UsageError(f"-np {count}, but the hosts have room for {capacity}"
                         f"{'' if script else f'; write -H localhost:{count}'}")  # fmt: skip


def instead(named, command):
    """The text that explains how to start on several hosts."""
    first = named[0][0]
    lines = [
        f"export FARANDOLE_JOB_KEY=...; farandole run --nnodes {len(named)} --node-rank {number} -np {slots} "
        f"--rendezvous {first}:29400 -- {shlex.join(command)}      # on {name}"
        for number, (name, slots) in enumerate(named)
    ]
    return (
        "; farandole starts nothing on other hosts, because it uses no ssh. Start on each of them, with one secret of "
        "16 or more characters as the key and the same number of ranks:\n  "
        + "\n  ".join(lines)
        + "\nor let Slurm, torchrun or mpirun start the processes: they are recognised."
    )


# ---- Texts ----------------------------------------------------------------------------------------------------------


def help_text():
    lines = [f"usage: {USAGE}", "", "Starts ranks on this host, as `farandole run` does.", ""]
    for option in OPTIONS:
        kind, name = option.sets
        flags = ", ".join(option.flags) + " VALUE" * option.values
        what = {"variable": f"sets {name}", "run": f"is `farandole run {name}`", "own": name.replace("_", " "),
                "nothing": f"accepted and without effect: {name}"}[kind]  # fmt: skip
        lines.append(f"  {flags:<58} {what}")
    return "\n".join(lines)


def build_text():
    def box(there):
        return "[X]" if there else "[ ]"

    frameworks = [("TensorFlow", False), ("PyTorch", util.find_spec("torch") is not None), ("MXNet", False)]
    rows = ["Available Frameworks:", *(f"    {box(there)} {name}" for name, there in frameworks)]
    rows += ["", "Available Controllers:", "    [ ] MPI", "    [ ] Gloo", "    [X] farandole"]
    rows += ["", "Available Tensor Operations:", *(f"    [ ] {name}" for name in ("NCCL", "DDL", "CCL", "MPI", "Gloo"))]
    rows += ["    [X] farandole (shared memory, TCP)"]
    return f"{version_text()}:\n\n" + "\n".join(rows)


def version_text():
    return f"farandole {farandole.__version__}, with the interface of Horovod {version.__version__}"


def command_of(job):
    """The words of `farandole run`."""
    words = [launcher.program(), "run", "--standalone"]
    for flag, value in job.run.items():
        words += [flag] if value is None else [flag, value]
    return [*words, "--", *job.command]


def plan(words):
    """(a text to print, None), or (None, the job) of a command line."""
    job = parse(words)
    for name, text in (("help", help_text), ("version", version_text), ("check_build", build_text)):
        if name in job.own:
            return text(), None
    if "config_file" in job.own:
        try:
            take_config_file(job, job.own["config_file"])
        except (OSError, ValueError) as error:
            raise UsageError(str(error)) from None
    if not job.command:
        raise UsageError(f"a command to run is missing: {USAGE}")
    if "host_discovery_script" in job.own:
        job.run.setdefault("--max-np", "65536")
        if "--min-np" in job.run:
            job.run.setdefault("-np", job.run["--min-np"])
    if "-np" not in job.run:
        raise UsageError(f"-np is missing, the number of ranks: {USAGE}")
    check_hosts(job)
    return None, job


def main(words=None):
    try:
        text, job = plan(sys.argv[1:] if words is None else words)
    except UsageError as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return _EX_USAGE
    if job is None:
        return guarded("horovodrun", lambda: print(text))
    for line in job.without_meaning:
        print(f"horovodrun: {line}", file=sys.stderr)
    command = command_of(job)
    if "verbose" in job.own:
        settings = [f"{name}={shlex.quote(value)}" for name, value in job.variables.items()]
        print(f"horovodrun: {' '.join([*settings, shlex.join(command)])}", file=sys.stderr)
    sys.stderr.flush()
    variables = {**os.environ, **job.variables}
    if "host_discovery_script" in job.own:
        return follow(command, variables, job.own["host_discovery_script"], int(job.run["-np"]))
    os.execve(command[0], command, variables)


run_commandline = main  # Horovod's name


if __name__ == "__main__":
    sys.exit(main())
