"""Meeting: which processes share a host, and where rank 0 of a job waits for the others."""

import os
import secrets
import socket

_PORTS = 16  # rank 0 takes the first free one from here on


def this_host():
    """The same on all processes that can meet in a socket of this machine's memory, and on no others."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def choose_place(hosts, towards=None, own=None, ports=None):
    """The rendezvous of rank 0, called there, given this_host() of all ranks.

    `own`: an address of this host that the others are known to reach; else it is looked for, and `towards` is a host of
    theirs. `ports`: (first, last) where only these are open; rank 0 takes the first free one.
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
    """Under which names other hosts may reach this one, the likeliest first."""
    names = []
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((towards or "192.0.2.1", 9))  # sends nothing: asks which of our addresses leads there
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
