"""`farandole kubernetes logs` and `status`: a watch on a job's pods and on the object that controls them."""

import sys

from .. import values
from ..errors import WrongCombination
from ..names import INSTANCE
from ..options import Parser
from .follower import NO_SUCH_JOB, Follower, lines_of_table, note, print_logs
from .kubectl import ApiError, Kubectl
from .outcome import CODES, RUNNING, SUSPENDED

KUBECTL_MISSING = 127
UNREACHABLE = 69
CODES_TEXT = (
    f"The exit code: 0 the job is complete; {CODES[RUNNING]} it still runs; {CODES[SUSPENDED]} it is suspended; if it "
    "has failed, the code of the pod that failed first (1 where that is none of its own); "
    f"{UNREACHABLE} the API server does not answer; {NO_SUCH_JOB} there is no such job; "
    f"{KUBECTL_MISSING} kubectl is not in PATH."
)


def parser(command):
    what = {
        "logs": "The logs of a job's pods, merged: each line behind its pod's rank.",
        "status": "The pods of a job in order of rank, and for those that wait, the reason.",
    }[command]
    made = Parser(prog=f"farandole kubernetes {command}", description=what, epilog=CODES_TEXT)
    made.add_argument("name", help="of the job, as given to `gen --name`")
    made.add_argument("-n", "--namespace", help="(kubectl's own)")
    made.add_argument("--context", help="of kubectl's configuration (the current one)")
    if command == "logs":
        made.add_argument("-f", "--follow", action="store_true", help="until the job has ended, with all of its pods")
        made.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each pod")
    else:
        made.add_argument("--wait", action="store_true", help="until the job has ended; each change is a line")
    made.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="how long the job may have no running pod, and how long the API server may be away (600)",
    )
    made.add_argument("--limit", type=float, metavar="SECONDS", help="ends after this time, also while the job runs")
    return made


def _check(made, o):
    for name, text in (("NAME", o.name), ("--namespace", o.namespace)):
        fault = None if text is None else values.fault_of_name(text)
        if fault:  # it becomes a part of paths and of selectors
            raise WrongCombination(f"{name} '{text}' {fault}; `{made.prog} --help` shows the form of the command")
    if (getattr(o, "tail", None) or 0) < 0:
        made.error(f"--tail {o.tail} is below 0")
    for name in ("timeout", "limit"):
        seconds = getattr(o, name)
        if seconds is not None and not 0 <= seconds < float("inf"):
            made.error(f"--{name} {seconds:g} is no number of seconds")


def main(command, words):
    made = parser(command)
    o = made.parse_args(words)
    _check(made, o)
    o.follows = o.follow if command == "logs" else o.wait
    o.shows_logs = command == "logs"
    try:
        return _run(o)
    except FileNotFoundError as error:
        print(f"farandole kubernetes {command}: {error}", file=sys.stderr)
        return KUBECTL_MISSING
    except ApiError as error:
        print(f"farandole kubernetes {command}: {error}", file=sys.stderr)
        return UNREACHABLE
    except KeyboardInterrupt:
        return 130


def _run(o):
    follower = Follower(Kubectl(o.namespace, o.context, o.limit), o)
    if o.follows:
        code = follower.follow()
    else:
        code = follower.look_once()
        if o.shows_logs:
            print_logs(follower)
    if follower.is_missing():
        note(
            f"there is no job '{o.name}' in namespace {follower.kubectl.namespace}, and no pod with the label "
            f"{INSTANCE}={o.name}; --namespace and --context choose others"
        )
    elif not o.follows:
        follower.note_outcome()
    if not o.shows_logs and follower.pods:
        print("\n".join(lines_of_table(follower)))
    return code
