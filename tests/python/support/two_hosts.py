"""Runs a command on the first of two hosts, which are network namespaces of this machine, joined by a cable.

    python two_hosts.py COMMAND...      runs it on host-a; the hosts end with it
    two_hosts.py [options] HOST COMMAND...   as mpirun's remote shell, through the file that AGENT names

The hosts have names and loopback interfaces of their own and share the file system. Needs root, or user namespaces.
"""

import os
import shlex
import subprocess
import sys
import tempfile

ADDRESSES = {"host-a": "198.18.77.1", "host-b": "198.18.77.2"}


def enter(pid, words):
    os.execvp("nsenter", ["nsenter", "--target", pid, "--net", "--uts", *words])


def remote_shell(words):
    while words[0].startswith("-"):
        words = words[1:]
    pids = dict(pair.split("=") for pair in os.environ["HOSTS_OF_THIS_TEST"].split(","))
    enter(pids[words[0]], ["sh", "-c", " ".join(words[1:])])


def start_host(name):
    """Returns the process that keeps a new host. It ends when this program does, and the host with it."""
    keeper = subprocess.Popen(
        ["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && echo up && exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    if keeper.stdout.readline().strip() != "up":
        sys.exit(f"two_hosts: {name} did not start")
    return keeper


def inside(keeper, *words, text=None):
    """Runs a command in the network of a host. `text` is its standard input."""
    subprocess.run(["nsenter", "--target", str(keeper.pid), "--net", *words], input=text, text=True, check=True)


def know_names():
    """Names resolve at once and to the right host; without this each launcher asks a name server first."""
    with tempfile.NamedTemporaryFile("w", suffix="-hosts") as file:
        file.write("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in ADDRESSES.items()))
        file.flush()
        subprocess.run(["mount", "--bind", file.name, "/etc/hosts"], check=True)


def join(hosts):
    first, second = hosts.values()
    inside(first, "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", str(second.pid))
    for name, keeper in hosts.items():
        inside(keeper, "ip", "link", "set", "lo", "up")
        inside(keeper, "ip", "addr", "add", ADDRESSES[name] + "/24", "dev", "cable")
        inside(keeper, "ip", "link", "set", "cable", "up")
        inside(keeper, "ip", "route", "add", "default", "dev", "cable")  # Open MPI refuses hosts without one


def main(command):
    if "TWO_HOSTS_ARE_PRIVATE" not in os.environ:  # mounts and namespaces of this program only
        os.environ["TWO_HOSTS_ARE_PRIVATE"] = "1"
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        os.execvp("unshare", ["unshare", "--mount", *as_root, sys.executable, *sys.argv])
    hosts = {}
    try:
        know_names()
        for name in ADDRESSES:
            hosts[name] = start_host(name)
        join(hosts)
        names = {key: str(hosts[name].pid) for name, address in ADDRESSES.items() for key in (name, address)}
        os.environ["HOSTS_OF_THIS_TEST"] = ",".join(f"{name}={pid}" for name, pid in names.items())
        keeper = names["host-a"]
        return subprocess.run(["nsenter", "--target", keeper, "--net", "--uts", *command]).returncode
    finally:
        for keeper in hosts.values():
            keeper.kill()
            keeper.wait()


if __name__ == "__main__":
    if "HOSTS_OF_THIS_TEST" in os.environ:
        remote_shell(sys.argv[1:])
    if len(sys.argv) < 2:
        sys.exit(f"use: two_hosts.py COMMAND..., for example: two_hosts.py {shlex.join(['ip', 'addr'])}")
    sys.exit(main(sys.argv[1:]))
