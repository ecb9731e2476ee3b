"""A host discovery script, run each second as Horovod does.

Its result is written to the file that `farandole run` reads.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from farandole import hosts

PAUSE_S = 1.0


def discovered_slots(script):
    """The number of ranks by the script's lines "host:slots". HostsError if it names other hosts or fails."""
    try:
        done = subprocess.run([script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise hosts.HostsError(f"the host discovery script cannot be run: {error}") from None
    if done.returncode != 0:
        raise hosts.HostsError(
            f"the host discovery script {script} failed with exit code {done.returncode}: {done.stderr.strip()}"
        )
    return hosts.local_slots(",".join(done.stdout.split())) if done.stdout.split() else 0


def follow(command, variables, script, count):
    """Runs `command`, which is `farandole run`, with as many ranks as the script prints, and returns its exit code.

    `count`: the number of ranks at the start.
    """
    folder = tempfile.mkdtemp(prefix="horovodrun-")
    path = os.path.join(folder, "np")
    end_of_options = command.index("--")
    command = [*command[:end_of_options], "--np-file", path, *command[end_of_options:]]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        process = subprocess.Popen(command, env=variables)
        for number in before:
            signal.signal(number, lambda received, _: process.send_signal(received))
        while True:
            try:
                code = process.wait(PAUSE_S)
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                count = _update(path, script, count)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)


def _update(path, script, count):
    try:
        slots = discovered_slots(script)
    except hosts.HostsError as error:
        print(f"horovodrun: {error}; the number of ranks stays", file=sys.stderr)
        return count
    if slots != count and slots > 0:
        with open(f"{path}.new", "w") as file:
            file.write(str(slots))
        os.rename(f"{path}.new", path)
    return slots
