"""Fabric is the network of all pods of a simulation, with its name server and the firewall of NetworkPolicies.

The network is a bridge in a network namespace of its own without a route out: its addresses do not exist outside.
"""

import ipaddress
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NET4, NET6 = ipaddress.ip_network("198.18.0.0/16"), ipaddress.ip_network("fd18::/64")
DNS4, DNS6 = str(NET4[1]), str(NET6[1])
CLUSTER = "cluster.local"


class Sandbox:
    """The parent's side of one process of sandbox.py. Both sides exchange lines of JSON over pipes."""

    def __init__(self, hostname):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(HERE, "sandbox.py"), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, bufsize=0, start_new_session=True)  # fmt: skip
        self.pending = b""
        self.pid = self.receive()["pid"]
        self.send(hostname=hostname)

    def send(self, **what):
        self.process.stdin.write((json.dumps(what) + "\n").encode())

    def receive(self):
        """Blocks until the next message and returns it."""
        while b"\n" not in self.pending:
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                raise RuntimeError("a sandbox ended; see its output above")
            self.pending += more
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def run(self, *command, text=""):
        """Runs a tool of this machine in the sandbox's network."""
        self.send(run=command, input=text)
        answer = self.receive()
        if answer["code"] != 0:
            raise RuntimeError(f"{' '.join(command)}: {answer['output']}\n{text}")
        return answer["output"]

    def end(self):
        """Ends all that runs in it."""
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.stdout.close()


class Fabric:
    """`dns_cache_s`: the seconds for which a cache in front of the name server keeps a name, and keeps that there is
    none, as node-local caches and CoreDNS's do. None: there is no cache."""

    def __init__(self, folder, families="4", dns_cache_s=None):
        self.folder, self.families, self.dns_cache_s = folder, families, dns_cache_s
        self.hosts = os.path.join(folder, "hosts")
        open(self.hosts, "w").close()
        self.plugged = 0
        self.sandbox = Sandbox("fabric")
        # The bridge gets a fixed hardware address. Without one it takes that of a pod's interface, and changes it when
        # that pod ends.
        self.sandbox.run("ip", "-batch", "-", text=f"""
            link set lo up
            link add br0 address 02:00:c6:12:00:01 type bridge
            addr add {DNS4}/{NET4.prefixlen} dev br0
            addr add {DNS6}/{NET6.prefixlen} dev br0 nodad
            link set br0 up""")  # fmt: skip
        self.dns = self.cache = None
        self.serve_names()

    def serve_names(self):
        """Starts dnsmasq, which serves the names of the hosts file and answers that no other name exists."""
        port = 53 if self.dns_cache_s is None else 5353
        found, missing = self.dns_cache_s or (0, 0)
        self.dns = self._dnsmasq(
            port, "dnsmasq", f"--addn-hosts={self.hosts}", "--local=/#/", "--cache-size=0", f"--local-ttl={found}"
        )
        if self.dns_cache_s is not None:
            self.cache = self._dnsmasq(
                53, "cache", f"--server={DNS4}#{port}", "--cache-size=1000", f"--neg-ttl={missing}"
            )

    def _dnsmasq(self, port, name, *options):
        log = os.path.join(self.folder, name + ".log")
        process = subprocess.Popen(
            [
                "nsenter",
                "-t",
                str(self.sandbox.pid),
                "-n",
                "setpriv",
                "--pdeathsig",
                "KILL",
                "dnsmasq",
                "--keep-in-foreground",
                "--no-resolv",
                "--no-hosts",
                "--conf-file=/dev/null",
                f"--port={port}",
                "--user=root",
                "--group=root",
                "--bind-interfaces",
                "--pid-file=",
                "--log-facility=-",
                *options,
                *(f"--listen-address={one}" for one in (DNS4, DNS6)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=open(log, "w"),
            start_new_session=True,
        )
        while not self._answers(port):  # until then it has no handler of the signal that announces new names
            if process.poll() is not None:
                raise RuntimeError("dnsmasq ended: " + open(log).read())
            time.sleep(0.002)
        return process

    def _answers(self, port):
        with open(f"/proc/{self.sandbox.pid}/net/udp") as file:
            return any(line.split()[1].endswith(f":{port:04X}") for line in file.readlines()[1:])

    def publish(self, records):
        """Replaces all names: `records` is {name: [address...]}."""
        lines = [f"{address} {name}\n" for name, addresses in sorted(records.items()) for address in addresses]
        with open(self.hosts + ".new", "w") as file:
            file.writelines(lines)
        os.replace(self.hosts + ".new", self.hosts)
        self.dns.send_signal(signal.SIGHUP)

    def silence_names(self, silent=True):
        self.dns.send_signal(signal.SIGSTOP if silent else signal.SIGCONT)

    def plug(self, sandbox):
        """Gives a pod its interface eth0; returns its addresses."""
        self.plugged += 1
        number = 9 + self.plugged
        sandbox.link = f"v{number}"
        self.sandbox.run("ip", "-batch", "-", text=f"""
            link add v{number} type veth peer name eth0 netns {sandbox.pid}
            link set v{number} master br0
            link set v{number} up""")  # fmt: skip
        addresses, lines = [], ["link set lo up"]
        if "4" in self.families:
            addresses.append(str(NET4[number]))
            lines.append(f"addr add {NET4[number]}/{NET4.prefixlen} dev eth0")
        if "6" in self.families:
            addresses.append(str(NET6[number]))
            lines.append(f"addr add {NET6[number]}/{NET6.prefixlen} dev eth0 nodad")
        sandbox.run("ip", "-batch", "-", text="\n".join([*lines, "link set eth0 up"]))
        return addresses

    def set_link(self, sandbox, up):
        """Down, all packets from and to the pod are dropped: no connection is reset, and no answer comes."""
        self.sandbox.run("ip", "link", "set", sandbox.link, "up" if up else "down")

    def resolv_conf(self, namespace, searches=()):
        server = DNS4 if "4" in self.families else DNS6
        domains = [f"{namespace}.svc.{CLUSTER}", f"svc.{CLUSTER}", CLUSTER, *searches]
        return (f"nameserver {server}\nsearch {' '.join(domains)}\n"
                "options ndots:5 timeout:1 attempts:5\n")  # fmt: skip

    def end(self):
        for process in (self.dns, self.cache):
            if process is None:
                continue
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.sandbox.end()


# ---- NetworkPolicy ---------------------------------------------------------------------------------------------------


def selects(selector, labels):
    """Whether a label selector matches these labels; an empty one matches all."""
    for key, value in (selector or {}).get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for one in (selector or {}).get("matchExpressions", []):
        has, values = labels.get(one["key"]), one.get("values", [])
        fits = {"In": has in values, "NotIn": has not in values, "Exists": has is not None,
                "DoesNotExist": has is None}[one["operator"]]  # fmt: skip
        if not fits:
            return False
    return True


def _peers(rule, key, namespace, everyone):
    """The addresses and networks that a rule names; None: all."""
    if not rule.get(key):
        return None
    found = []
    for peer in rule[key]:
        if "ipBlock" in peer:
            found.append(peer["ipBlock"]["cidr"])
            continue
        for where, where_labels, labels, addresses in everyone:
            inside = (
                selects(peer["namespaceSelector"], where_labels) if "namespaceSelector" in peer else where == namespace
            )
            if inside and selects(peer.get("podSelector"), labels):
                found += addresses
    return found


def _ports(rule):
    if not rule.get("ports"):
        return [""]
    matches = []
    for port in rule["ports"]:
        protocol = port.get("protocol", "TCP").lower()
        if "port" not in port:
            matches.append(f"meta l4proto {protocol}")
        else:
            last = f"-{port['endPort']}" if "endPort" in port else ""
            matches.append(f"{protocol} dport {port['port']}{last}")
    return matches


def firewall(policies, namespace, labels, everyone):
    """The nftables rules of one pod, from the NetworkPolicies that select it. `everyone`: (namespace, its labels,
    labels, addresses) of all pods. Empty: no policy selects it."""
    mine = [one["spec"] for one in policies if one["metadata"].get("namespace", "default") == namespace
            and selects(one["spec"].get("podSelector"), labels)]  # fmt: skip
    lines = []
    for way, hook, key, side in (("Ingress", "input", "from", "saddr"), ("Egress", "output", "to", "daddr")):
        bound = [
            one for one in mine if way in one.get("policyTypes", ["Ingress"] + (["Egress"] if "egress" in one else []))
        ]
        if not bound:
            continue
        device = "iifname" if hook == "input" else "oifname"
        lines += [f"  chain {hook} {{", f"    type filter hook {hook} priority 0; policy drop;",
                  "    ct state established,related accept", f"    {device} lo accept",
                  "    icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"]  # fmt: skip
        for spec in bound:
            for rule in spec.get(way.lower(), []):
                peers = _peers(rule, key, namespace, everyone)
                for ports in _ports(rule):
                    if peers is None:
                        lines.append(f"    {ports} accept")
                    for peer in peers or []:
                        family = "ip6" if ":" in peer else "ip"
                        lines.append(f"    {family} {side} {peer} {ports} accept")
        lines.append("  }")
    if not lines:
        return ""
    return "\n".join(["table inet podsim", "delete table inet podsim", "table inet podsim {", *lines, "}", ""])
