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


def world_of(comm):
    """Returns the arguments with which init() makes a world of the ranks of an mpi4py communicator.

    Collective over its ranks; blocks as MPI does, without a time-out. Rank 0's address and a random job key travel over
    MPI. ValueError if `comm` is no such communicator, or an intercommunicator.
    """
    if not all(hasattr(comm, name) for name in ("Get_rank", "Get_size", "Is_inter", "allgather", "bcast")):
        raise ValueError(f"comm: {type(comm).__name__} is no communicator of mpi4py (mpi4py.MPI.Comm)")
    if comm.Is_inter():
        raise ValueError("comm: an intercommunicator has two groups of ranks; give Merge() of it")
    rank = comm.Get_rank()
    hosts = comm.allgather((host_identity(), socket.gethostname()))
    word = None
    if rank == 0:
        other = next((name for identity, name in hosts if identity != hosts[0][0]), None)
        word = choose_rendezvous([identity for identity, _ in hosts], towards=other), secrets.token_hex(32)
    address, key = comm.bcast(word, 0)
    neighbours = [number for number, host in enumerate(hosts) if host[0] == hosts[rank][0]]
    return {"rank": rank, "size": len(hosts), "local_rank": neighbours.index(rank), "local_size": len(neighbours),
            "rendezvous": address, "job_key": key}  # fmt: skip


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
