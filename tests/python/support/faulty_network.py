"""Hosts on one switch, whose links can be cut, made lossy or reset: network namespaces of this machine.

The switch is a bridge in a namespace of its own. Faults are nftables rules in the switch, so that no end of a link gets
an error from its own kernel; resets are rules in the hosts. With a delay the switch is bench/network/slow_switch.cpp,
because many kernels lack netem. All namespaces end with this program, also if it is killed.

Needs root, or user namespaces; unshare and nsenter (util-linux), ip (iproute2), nft (nftables).
"""

import os
import shutil
import subprocess

from two_hosts import inside, start_host

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "nft": "nftables"}


def address_of(host):
    return f"198.18.78.{host + 1}"


def why_not():
    """Says what this machine lacks for such a network; None if nothing."""
    missing = [f"{program} (Debian's {package})" for program, package in PACKAGES.items() if not shutil.which(program)]
    if missing:
        return "the programs " + ", ".join(missing) + " are missing"
    try:
        with Network(2) as network:
            network.cut([(0, 1), (1, 0)])
            network.lose([(0, 1)], 20)
            network.reset([(0, 1)])
            network.heal()
    except (OSError, subprocess.CalledProcessError, SystemExit) as error:
        return f"network namespaces with rules of nftables cannot be made: {error}"
    return None


def build_slow_switch(folder):
    path = os.path.join(folder, "slow_switch")
    source = os.path.join(ROOT, "bench", "network", "slow_switch.cpp")
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-o", path, source], check=True)
    return path


class Network:
    """`count` hosts, numbered from 0. A link is a pair (sender, receiver), so a fault may have one direction."""

    def __init__(self, count, slow_switch=None, delay_s=0.0):
        self.keepers, self.slow_switch = [], None
        self.resetting = set()  # hosts that answer with resets
        try:
            self.switch = self._keep("switch")
            self.hosts = [self._keep(f"host-{number}") for number in range(count)]
            if slow_switch:
                self._join_slowly(slow_switch, delay_s)
            else:
                self._join()
        except BaseException:
            self.close()
            raise

    def _keep(self, name):
        self.keepers.append(start_host(name))
        return self.keepers[-1]

    def _join(self):
        lines = ["link add br0 type bridge forward_delay 0 mcast_snooping 0", "link set br0 up"]
        for number, host in enumerate(self.hosts):
            lines += [f"link add port{number} type veth peer name eth0 netns {host.pid}",
                      f"link set port{number} master br0", f"link set port{number} up"]  # fmt: skip
        inside(self.switch, "ip", "-batch", "-", text="\n".join(lines) + "\n")
        self._address_all()

    def _join_slowly(self, program, delay_s):
        names = [f"tap{number}" for number in range(len(self.hosts))]
        self.slow_switch = subprocess.Popen(
            ["nsenter", "--target", str(self.switch.pid), "--net", program, str(int(delay_s * 1e6)), *names],
            stdout=subprocess.PIPE, text=True)  # fmt: skip
        if self.slow_switch.stdout.readline().strip() != "ready":
            raise OSError("the slow switch did not start: /dev/net/tun is needed")
        moves = [f"link set {name} netns {host.pid} name eth0" for name, host in zip(names, self.hosts)]
        inside(self.switch, "ip", "-batch", "-", text="\n".join(moves) + "\n")
        self._address_all()

    def _address_all(self):
        for number, host in enumerate(self.hosts):
            inside(host, "ip", "-batch", "-", text="link set lo up\nlink set eth0 addrgenmode none\n"
                   f"addr add {address_of(number)}/24 dev eth0\nlink set eth0 up\n")  # fmt: skip

    def command_on(self, host, words):
        """The words of a command that runs on that host."""
        return ["nsenter", "--target", str(self.hosts[host].pid), "--net", "--uts", *words]

    # ---- Faults. Each replaces the ones before. ----

    def cut(self, links):
        """Drops all packets, without an answer."""
        self._rule_the_switch(links, "drop")

    def lose(self, links, percent):
        self._rule_the_switch(links, f"numgen random mod 100 < {percent} drop")

    def reset(self, links):
        """Answers each TCP segment with a reset, as a firewall does that has lost its state."""
        self.heal()
        self.resetting = {link[1] for link in links}
        for receiver in self.resetting:
            senders = ", ".join(address_of(sender) for sender, target in links if target == receiver)
            rule = f"ip saddr {{ {senders} }} tcp flags & rst != rst reject with tcp reset"
            table = f"table inet faults {{\nchain arriving {{\ntype filter hook input priority 0;\n{rule}\n}}\n}}\n"
            inside(self.hosts[receiver], "nft", "-f", "-", text=table)

    def heal(self):
        self._rule_the_switch([], "")

    def _rule_the_switch(self, links, verdict):
        for host in self.resetting:
            inside(self.hosts[host], "nft", "flush", "ruleset")
        self.resetting = set()
        rules = "\n".join(f'iifname "port{sender}" oifname "port{target}" {verdict}' for sender, target in links)
        inside(self.switch, "nft", "-f", "-", text="flush ruleset\ntable bridge faults {\n"
               f"chain passing {{\ntype filter hook forward priority 0;\n{rules}\n}}\n}}\n")  # fmt: skip

    # ---- The end ----

    def close(self):
        for process in (*self.keepers, *([self.slow_switch] if self.slow_switch else [])):
            process.kill()
            process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
