"""Rendezvous: which processes share a host, and the address at which rank 0 of a job listens for the other ranks."""

import os
import secrets
import socket

_PORTS = 16  # rank 0 takes the first free one of this many


def host_identity():
    """A text that is equal on all processes that can meet in one abstract Unix socket, and different elsewhere."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def choose_rendezvous(hosts, towards=None, own=None, ports=None):
    """Returns the rendezvous address of a job. Rank 0 calls it, with host_identity() of all ranks.

    `own`: an address of this host that the other hosts can reach. Without it the address is detected; `towards` is then
    the name of one of the other hosts. `ports`: (first, last) of the open ports. Rank 0 takes the first free one.
    """
    if len(set(hosts)) == 1:
        return f"unix:@farandole-{secrets.token_hex(16)}"
    if ports is None:
        first = min(_free_port(), 65535 - _PORTS)
        ports = (first, first + _PORTS - 1)
    names = [own] if own else _addresses(towards)
    return "tcp://" + ",".join(f"{_bracketed(name)}:{ports[0]}-{ports[1]}" for name in names)


def _bracketed(name):
    return f"[{name}]" if ":" in name else name


def _free_port():
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def _addresses(towards):
    """The addresses at which other hosts may reach this one, the likeliest first."""
    names = []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards or "192.0.2.1", 9))  # sends nothing: the kernel chooses the source address
            names.append(probe.getsockname()[0])
    except OSError:
        pass
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        names += [address[0] for *_, address in found]
    except OSError:
        pass
    outside = [name for name in dict.fromkeys(names) if not name.startswith("127.")]
    return outside or [socket.gethostname()]
