"""Ranks as processes of this machine, without a launcher: rank 0 serves the coordinator."""

import collections
import os
import secrets
import socket
import subprocess

_reserved = collections.deque(maxlen=64)


def _free_port():
    """A port at which no other process listens or connects from while 64 more are reserved. The socket does not listen,
    so rank 0 can; without it the kernel may give the port to a connection of another rank."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)
    return holder.getsockname()[1]


def start(command, size, output, **settings):
    """The processes. `output`: as Popen's stdout. `settings`: farandole's, in lower case, such as transport="tcp"."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}
    settings.update(
        size=size, rendezvous=f"tcp://127.0.0.1:{_free_port()}", job_key=secrets.token_hex(16), log_level="error"
    )
    variables.update({f"FARANDOLE_{name.upper()}": str(value) for name, value in settings.items()})
    return [
        subprocess.Popen(
            command, env={**variables, "FARANDOLE_RANK": str(rank)}, stdout=output, stderr=subprocess.STDOUT
        )
        for rank in range(size)
    ]


def kill(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
