"""The line to the launcher of an elastic job: it says who this process is in each generation, and when that changes.

`farandole run --min-np ...` sets FARANDOLE_ELASTIC and FARANDOLE_WORKER. The words are those of
src/program/worker_door.h.
"""

import os
import socket
import struct

from . import errors

ADDED, REMOVED = 1, 2  # as programs for Horovod have them


def is_elastic():
    """Whether the launcher of this process replaces ranks."""
    return _door is not None or (bool(os.environ.get("FARANDOLE_ELASTIC")) and "FARANDOLE_WORKER" in os.environ)


class Removed(errors.ShutDownError):
    """The job goes on with fewer ranks, and this one is not among them."""


class Door:
    """One connection, for the life of the process."""

    def __init__(self):
        address = os.environ["FARANDOLE_ELASTIC"]
        self._worker = int(os.environ["FARANDOLE_WORKER"])
        self._unread = b""
        self._news = 0  # what was told of changes since the generation began
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect("\0" + address[len("unix:@") :])
        except OSError as error:
            raise errors.PeerLostError(
                f"`farandole run`, which started this rank, cannot be reached: {error}"
            ) from None
        _, user, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            raise errors.AuthenticationError(f"a process of another user ({user}) listens at {address}")

    def next_world(self, lost_rank=-1):
        """Who this process is in the next generation, as arguments for init; blocks until that begins. `lost_rank`:
        whom this rank saw lost. ShutDownError where no generation follows, Removed where one does."""
        try:
            self._socket.sendall(f"join {self._worker} {lost_rank}\n".encode())
        except OSError:
            pass  # the reason is still to be read
        while True:
            words = self._next_line()
            if words[0] == "world":
                self._news = 0
                rank, size, local_rank, local_size = map(int, words[2:6])
                return dict(rank=rank, size=size, local_rank=local_rank, local_size=local_size, rendezvous=words[6])
            if words[0] == "removed":
                raise Removed("this rank has been removed from the elastic job")
            if words[0] == "end":
                raise errors.ShutDownError("the elastic job ends: " + " ".join(words[1:]))
            self._take_news(words)

    def news(self):
        """ADDED, REMOVED, both or 0: what the launcher told since this was asked last. Does not block."""
        while True:
            words = self._next_line(socket.MSG_DONTWAIT)
            if words is None:
                news, self._news = self._news, 0
                return news
            self._take_news(words)

    def _take_news(self, words):
        if words[0] == "hosts":
            self._news |= {"added": ADDED, "removed": REMOVED}.get(words[1], ADDED)

    def _next_line(self, flags=0):
        """The words of the next line; None where there is none yet and `flags` say not to wait."""
        while b"\n" not in self._unread:
            try:
                data = self._socket.recv(4096, flags)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if not data:
                if flags:
                    return None  # the launcher is gone, which ends this process too; nothing is news any more
                raise errors.PeerLostError("`farandole run`, which started this rank, is gone or does not know it")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode().split(" ")


_door = None


def give(door):
    """This process asks by another door than that of `farandole run`: one with next_world(), news() and the process's
    id as `_pid`. None: by none any more."""
    global _door
    _door = door


def door():
    """This process's door; None where its launcher replaces no ranks. A forked child has none: it is no rank."""
    global _door
    if not is_elastic():
        return None
    if _door is None:
        _door = Door()
    return _door if _door._pid == os.getpid() else None
