"""The connection to the launcher of an elastic job. It delivers this process's rank in each generation, and changes.

`farandole run --min-np ...` sets FARANDOLE_ELASTIC and FARANDOLE_WORKER. The launcher's listener defines the protocol:
one line of words for each message.
"""

import logging
import os
import select
import socket
import struct
import time

from . import errors, termination

_log = logging.getLogger("farandole.elastic")

FINISHED = "other ranks have finished"  # the launcher's reason where the job has come to its end
ADDED, REMOVED = 1, 2  # the numbers of Horovod's HostUpdateResult


def is_elastic():
    """Whether the launcher of this process replaces ranks."""
    return _client is not None or (bool(os.environ.get("FARANDOLE_ELASTIC")) and "FARANDOLE_WORKER" in os.environ)


class RankRemoved(errors.ShutDownError):
    """The job continues with fewer ranks, and this rank is not one of them."""


class LauncherClient:
    """The connection to `farandole run`. A process opens it once and keeps it until it exits."""

    def __init__(self):
        self.has_state = True  # see note_state()
        address = os.environ["FARANDOLE_ELASTIC"]
        self._worker = int(os.environ["FARANDOLE_WORKER"])
        self._unread = b""
        self._changes = 0  # ADDED and REMOVED since the generation began
        self._has_belonged = False  # to a generation
        self._removal_reported = False  # since the generation began
        self._is_closed = False  # by the launcher
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
        """Blocks until the next generation begins, and returns this process's arguments for init.

        `lost_rank`: the rank whose loss this rank has observed; -1 for none. ShutDownError if no generation follows,
        RankRemoved if this process does not belong to the next one. SystemExit(0) if the job has finished, or needs it
        no more, before this process belonged to it: nothing is left to do, and nothing has failed.
        """
        try:
            stateless = "" if self.has_state else " stateless"
            self._socket.sendall(f"join {self._worker} {lost_rank}{stateless}\n".encode())
        except OSError:
            pass  # the launcher's last line, with the reason, can still be read
        while True:
            words = self._next_line()
            if words[0] == "world":
                self._changes, self._has_belonged, self._removal_reported = 0, True, False
                rank, size, local_rank, local_size = map(int, words[2:6])
                return dict(rank=rank, size=size, local_rank=local_rank, local_size=local_size, rendezvous=words[6])
            if words[0] == "removed":
                if not self._has_belonged:
                    termination.leave_if_requested()
                    raise SystemExit(0)  # before elastic.run(), which handles the exception
                raise RankRemoved("this rank has been removed from the elastic job")
            if words[0] == "end":
                if " ".join(words[1:]).startswith(FINISHED) and not self._has_belonged:
                    raise SystemExit(0)
                raise errors.ShutDownError("the elastic job ends: " + " ".join(words[1:]))
            if words[0] != "pong":
                self._note_change(words)

    def membership_changes(self):
        """ADDED, REMOVED, both or 0: the changes since the last call. Does not block."""
        while True:
            words = self._next_line(waits=False)
            if words is None:
                changes, self._changes = self._changes, 0
                return changes
            self._note_change(words)

    def has_reported_removal(self, limit_s):
        """Whether ranks leave this generation by the launcher's report, which may come within `limit_s`."""
        deadline = time.monotonic() + limit_s
        waits = select.poll()
        waits.register(self._socket, select.POLLIN)
        while not self._removal_reported:
            words = self._next_line(waits=False)
            if words is not None:
                self._note_change(words)
            elif self._is_closed or not waits.poll(max(0.0, deadline - time.monotonic()) * 1000):
                break
        return self._removal_reported

    def _note_change(self, words):
        if words[0] == "hosts":
            self._removal_reported |= words[1] == "removed"
            self._changes |= {"added": ADDED, "removed": REMOVED}.get(words[1], ADDED)

    def _next_line(self, waits=True):
        """The words of the next line. None if there is none yet and this call must not wait."""
        while b"\n" not in self._unread:
            if waits:
                self._wait_for_launcher()
            try:
                data = self._socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if waits:
                    continue
                return None
            except OSError:
                data = b""
            if not data:
                self._is_closed = True
                if not waits:
                    return None  # the launcher has exited and ends this process too: there are no more changes
                raise errors.PeerLostError("`farandole run`, which started this rank, has exited or rejected this rank")
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode().split(" ")

    def _wait_for_launcher(self):
        """Returns when the socket is readable.

        The next generation may begin much later. Meanwhile the launcher is asked whether it runs, because one that is
        stopped closes no connection. Time in which this process is stopped counts as one question at most.
        """
        from . import core  # which imports this module

        limit_s = float(core.setting("lost_after_s"))
        step_s = min(1.0, limit_s / 4)
        waits = select.poll()
        waits.register(self._socket, select.POLLIN)
        unanswered = -1  # before the first question
        silence = "`farandole run`, which started this rank, has not answered for %g s (stopped or swapped out)"
        while not waits.poll(step_s * 1000):
            unanswered += 1
            if unanswered == 1:
                _log.warning(silence + "; after %g s it is lost (FARANDOLE_LOST_AFTER_S)", step_s, limit_s)
            if unanswered * step_s >= limit_s:
                raise errors.PeerLostError(silence % limit_s)
            try:
                self._socket.send(b"ping\n", socket.MSG_DONTWAIT)
            except OSError:
                pass  # the socket is readable then, or the launcher reads nothing


_client = None
calls = [0]  # how often an elastic function was called; then how often inside of the one that runs, and so on


def use(client):
    """Replaces the connection to `farandole run` by another client; None restores the default.

    The client has next_world(), membership_changes(), has_reported_removal(), has_state and the id of its process as
    `_pid`.
    """
    global _client
    _client = client
    calls[:] = [0]


def client():
    """This process's client. None if its launcher does not replace ranks, and in a forked child, which is no rank."""
    global _client
    if not is_elastic():
        return None
    if _client is None:
        _client = LauncherClient()
    return _client if _client._pid == os.getpid() else None


def note_state(is_held):
    """Notes whether this process holds the state of training.

    The launcher learns it with the next request for a generation: a process that lost its generation before it received
    the state holds none, and must not become the rank from which the others receive theirs.
    """
    if _client is not None:
        _client.has_state = is_held
