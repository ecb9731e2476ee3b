"""`farandole kubernetes logs` and `status`: kubectl queries the cluster, and this module orders its output."""

import argparse
import json
import queue
import shutil
import subprocess
import sys
import threading
import time

from .errors import WrongCombination
from .names import INSTANCE
from .pod_state import FAILED, exit_code, index_of, job_code, short_name, state

KUBECTL_MISSING = 127
_PAUSE_S = 5  # between two queries for missing pods


def parser(command):
    what = {
        "logs": "The logs of a job's pods, merged: each line behind its pod's rank. Ends with the job's code.",
        "status": "The pods of a job in order of rank, and for those that wait, the reason.",
    }[command]
    made = argparse.ArgumentParser(prog=f"farandole kubernetes {command}", description=what)
    made.add_argument("name", help="of the job, as given to `gen --name`")
    made.add_argument("-n", "--namespace", help="(kubectl's own)")
    made.add_argument("--context", help="of kubectl's configuration (the current one)")
    if command == "logs":
        made.add_argument("-f", "--follow", action="store_true", help="wait for the pods and until they end")
        made.add_argument("--tail", type=int, metavar="N", help="only the last N lines of each pod")
    else:
        made.add_argument("--wait", action="store_true", help="until the job has ended; ends with its code")
    made.add_argument(
        "--timeout", type=float, default=600, metavar="SECONDS", help="how long pods may take to start (600)"
    )
    return made


class Kubectl:
    def __init__(self, o):
        self.name = o.name
        self.program = shutil.which("kubectl")
        if not self.program:
            raise FileNotFoundError("kubectl is not in PATH; install it, and try `kubectl get pods`")
        self.common = [*(["-n", o.namespace] if o.namespace else []), *(["--context", o.context] if o.context else [])]

    def words(self, *words):
        return [self.program, *words, *self.common]

    def json(self, *words):
        done = subprocess.run(self.words(*words, "-o", "json"), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"`kubectl {' '.join(words)}` failed: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def pods(self):
        """The newest pod of each index, in order of rank."""
        found = self.json("get", "pods", "-l", f"{INSTANCE}={self.name}")["items"]
        found.sort(key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
        newest = {index_of(pod): pod for pod in found}
        return [newest[key] for key in sorted(newest)]

    def events(self, pod):
        name = pod["metadata"]["name"]
        return self.json("get", "events", "--field-selector", f"involvedObject.name={name}")["items"]


def reason_of(kubectl, pod):
    word, reason = state(pod)
    if reason is None:
        warnings = [event for event in kubectl.events(pod) if event.get("type") == "Warning"]
        reason = warnings[-1].get("message", "") if warnings else "its container is being made"
    return word, reason


def _table(kubectl, pods):
    rows = [
        (short_name(pod), pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "-"), *reason_of(kubectl, pod))
        for pod in pods
    ]
    widths = [max(len(row[at]) for row in [("rank", "pod", "node", "state", ""), *rows]) for at in range(4)]
    for row in [("rank", "pod", "node", "state", "why"), *rows]:
        print("  ".join(word.ljust(width) for word, width in zip(row, widths)) + ("  " + row[4] if row[4] else ""))


def _await_pods(kubectl, o):
    """Returns the pods as soon as all existing ones have started. Prints each reason to wait once."""
    ends, printed = time.monotonic() + o.timeout, set()
    while True:
        pods = kubectl.pods()
        waiting = [(pod, *reason_of(kubectl, pod)) for pod in pods if state(pod)[0] == "waiting"]
        if pods and not waiting:
            return pods
        lines = [f"{pod['metadata']['name']} waits: {why}" for pod, _, why in waiting] or [
            f"no pods of '{o.name}' yet: if this lasts, see `kubectl get events`"
        ]
        for line in lines:
            if line not in printed:
                print(f"farandole kubernetes: {line}", file=sys.stderr)
            printed.add(line)
        if time.monotonic() > ends:
            print(
                f"farandole kubernetes: the pods have not started within {o.timeout:g} s (--timeout)", file=sys.stderr
            )
            return None
        time.sleep(min(_PAUSE_S, max(0.0, o.timeout / 10)))


def status(kubectl, o):
    pods = kubectl.pods()
    if not pods and not o.wait:
        print(f"farandole kubernetes: there is no pod with the label {INSTANCE}={o.name}", file=sys.stderr)
        return FAILED
    if o.wait:
        pods = _await_pods(kubectl, o)
        if pods is None:
            return FAILED
        while job_code(pods) is None:
            time.sleep(_PAUSE_S)
            pods = kubectl.pods()
    _table(kubectl, pods)
    code = job_code(pods)
    return code if o.wait else (code or 0)


def _read(stream, name, lines):
    for line in stream:
        lines.put((name, line.rstrip("\n")))
    lines.put((name, None))


def _merge(kubectl, o, pods):
    """Prints every pod's lines as they arrive, prefixed with the rank. Without --follow one pod after the other."""
    if not o.follow:
        for pod in pods:
            lines = queue.Queue()
            process = _start(kubectl, o, pod)
            _read(process.stdout, short_name(pod), lines)
            process.wait()
            _print(lines, 1)
        return
    lines, processes = queue.Queue(), []
    for pod in pods:
        processes.append(_start(kubectl, o, pod))
        threading.Thread(target=_read, args=(processes[-1].stdout, short_name(pod), lines), daemon=True).start()
    _print(lines, len(pods))
    for process in processes:
        process.wait()


def _start(kubectl, o, pod):
    words = kubectl.words(
        "logs",
        pod["metadata"]["name"],
        *(["-f"] if o.follow else []),
        *([f"--tail={o.tail}"] if o.tail is not None else []),
    )
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace")


def _print(lines, open_streams):
    while open_streams:
        name, line = lines.get()
        if line is None:
            open_streams -= 1
        else:
            print(f"{name}| {line}", flush=True)


def logs(kubectl, o):
    pods = _await_pods(kubectl, o) if o.follow else kubectl.pods()
    if not pods:
        if pods is not None:
            print(f"farandole kubernetes: there is no pod with the label {INSTANCE}={o.name}", file=sys.stderr)
        return FAILED
    _merge(kubectl, o, [pod for pod in pods if o.follow or state(pod)[0] != "waiting"])
    ends = time.monotonic() + o.timeout
    pods = kubectl.pods()
    while o.follow and job_code(pods) is None and time.monotonic() < ends:
        time.sleep(1)  # a container's last line precedes its end
        pods = kubectl.pods()
    code = job_code(pods)
    bad = [pod for pod in pods if exit_code(pod)]
    for pod in bad:
        print(f"farandole kubernetes: {pod['metadata']['name']} {': '.join(filter(None, state(pod)))}", file=sys.stderr)
    return code if code is not None else 0


def main(command, words):
    o = parser(command).parse_args(words)
    try:
        return {"logs": logs, "status": status}[command](Kubectl(o), o)
    except FileNotFoundError as error:
        print(f"farandole kubernetes {command}: {error}", file=sys.stderr)
        return KUBECTL_MISSING
    except RuntimeError as error:
        raise WrongCombination(str(error)) from None
    except KeyboardInterrupt:
        return 130
