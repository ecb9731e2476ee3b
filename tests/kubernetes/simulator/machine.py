"""Checks what podsim needs of this machine, and removes what earlier simulations have left on it."""

import contextlib
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PREFIX = "podsim-"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SIZES = {"": 1, "k": 1000, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def why_not():
    """The reason why no pod can run on this machine, or the empty string."""
    if os.geteuid() != 0:
        return "podsim needs root, for namespaces"
    tools = {
        "ip": "iproute2",
        "dnsmasq": "dnsmasq-base",
        "nft": "nftables",
        "nsenter": "util-linux",
        "setpriv": "util-linux",
    }
    search = os.environ.get("PATH", "") + ":" + PATH
    missing = [package for tool, package in tools.items() if shutil.which(tool, path=search) is None]
    if missing:
        return f"podsim needs Debian's {' '.join(sorted(set(missing)))} (apt-get install --no-install-recommends)"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "true"], capture_output=True
    )
    return "" if tried.returncode == 0 else f"podsim needs namespaces: {tried.stderr.decode().strip()}"


def is_overloaded():
    """Whether more than four processes waited for each core in the last minute."""
    return os.getloadavg()[0] > 4 * len(os.sched_getaffinity(0))


def start_limit_s():
    """How long the ranks of a test may take to start, where that is not what it is about."""
    return 80 if is_overloaded() else 20


def passable():
    """Folders above the interpreter that other users may not enter; in a pod they may."""
    found = set()
    for path in (os.path.realpath(sys.executable), sys.prefix, os.path.dirname(__file__)):
        while path != "/":
            path = os.path.dirname(path)
            if os.stat(path).st_mode & 0o001 == 0:
                found.add(path)
    return sorted(found)


def size_of(text):
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text)).groups()
    return int(float(number) * SIZES[unit])


def cores_of(text):
    return float(text[:-1]) / 1000 if str(text).endswith("m") else float(text)


# ---- What a simulation leaves on the machine: a folder in /tmp and cgroups, each with the number of its process
# -------


def _born(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except OSError:
        return None


def own_stem():
    return f"{PREFIX}{os.getpid()}-{_born(os.getpid())}-"


def _cgroup_roots():
    return [one for one in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup") if os.access(one, os.W_OK)]


def remove_cgroup(path):
    """Removes a control group and kills the processes that are still in it."""
    while True:
        try:
            os.rmdir(path)
            return
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            if error.errno != errno.EBUSY:
                raise
        with contextlib.suppress(FileNotFoundError), open(os.path.join(path, "cgroup.procs")) as file:
            for pid in file.read().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)


def _raise_unless_gone(function, path, raised):
    """For rmtree: another process may remove the same files."""
    if not issubclass(raised[0], FileNotFoundError):
        raise raised[1]


def sweep():
    """Removes files and control groups of simulations that have ended. Their processes have ended too: see
    sandbox.py. Several processes may do so at the same time."""
    removed = []
    for root in [tempfile.gettempdir(), *_cgroup_roots()]:
        for name in os.listdir(root):
            parts = name.split("-")
            if not name.startswith(PREFIX) or len(parts) < 4 or _born(parts[1]) == parts[2]:
                continue
            path = os.path.join(root, name)
            if root.startswith("/sys"):
                remove_cgroup(path)
            else:
                shutil.rmtree(path, onerror=_raise_unless_gone)
            removed.append(path)
    return removed
