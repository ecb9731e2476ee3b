"""Server: the driver's end of the channels to all agents. One thread calls step(); wake() may come from any thread."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Callable

from .channel import Broken, Frames, Greeting, watch_host

_MOST_STRANGERS = 128
_STRANGER_S = 10.0  # the time in which a connection must prove the key
_MOST_UNSENT = 64 << 20  # for an agent that does not read


class Peer:
    """The connection to one agent. The owner may set `worker`."""

    def __init__(self, connection: socket.socket, key: str):
        self.socket, self.address = connection, connection.getpeername()[0]
        self.greeting: Greeting | None = Greeting(key)
        self.expires = time.monotonic() + _STRANGER_S
        self.frames: Frames | None = None
        self.unsent = bytearray(self.greeting.hello())
        self.worker: object = None
        self.unanswered = 0  # pings since the last message of the agent


def _listen(host: str, ports: Sequence[int]) -> socket.socket:
    for port in ports:
        with contextlib.suppress(OSError):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=256)
    raise OSError(f"no port of {host} from {ports[0]} to {ports[-1]} is free: see FARANDOLE_PORT_BASE")


class Server:
    """Listens for agents that have the key. `on_message(peer, message, body)` and `on_lost(peer)` are called in step().

    on_lost() is called for agents that have proved the key only.
    """

    def __init__(self, host: str, ports: tuple[int, int] | None, key: str, on_message: Callable, on_lost: Callable):
        """`ports`: the first and the last that may be used; None: any free port. OSError if all are in use."""
        self._key, self._on_message, self._on_lost = key, on_message, on_lost
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(host, range(ports[0], ports[1] + 1) if ports else [0])
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._peers: set[Peer] = set()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    def step(self, until: float | None) -> None:
        """Waits for events until the time `until` of time.monotonic() (None: without a limit), and handles them."""
        limits = [one.expires for one in self._peers if one.frames is None]
        limits += [] if until is None else [until]
        wait_s = max(0.0, min(limits) - time.monotonic()) if limits else None
        for key, events in self._selector.select(wait_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif key.data in self._peers:
                self._serve(key.data, events)
        for peer in [one for one in self._peers if one.frames is None and one.expires < time.monotonic()]:
            self._drop(peer)

    def wake(self) -> None:
        """Makes step() return. From any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"x")

    def send(self, peer: Peer, message: dict) -> None:
        """Sends what the socket accepts; step() sends the rest."""
        if peer in self._peers:
            peer.unsent += peer.frames.encode(message)
            self._flush(peer)

    def ping(self, most: int) -> None:
        """Sends a ping to each agent, and drops those that have not answered the last `most`.

        Pings are counted, not seconds: a driver that was stopped itself reports no agent as lost.
        """
        for peer in [one for one in self._peers if one.frames is not None]:
            peer.unanswered += 1
            if peer.unanswered > most:
                self._drop(peer)
            else:
                self.send(peer, {"kind": "ping"})

    def close(self) -> None:
        for peer in list(self._peers):
            self._close(peer)
        for one in (self._listener, self._woken, self._waker):
            one.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it is gone already, or the process has no descriptor left: the next step tries again
            return
        if sum(one.frames is None for one in self._peers) >= _MOST_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        watch_host(connection)
        try:
            peer = Peer(connection, self._key)
        except OSError:
            connection.close()
            return
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._flush(peer)

    def _serve(self, peer: Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ or peer not in self._peers:
            return
        try:
            data = peer.socket.recv(1 << 16)
            if not data:
                raise Broken("closed")
            if peer.greeting is not None:
                taken = peer.greeting.take(data)
                if taken is None:
                    return
                reply, peer.frames, data = taken
                peer.greeting = None
                peer.unsent += reply
                self._flush(peer)
            for message, body in peer.frames.decode(data):
                peer.unanswered = 0
                if message["kind"] != "pong":
                    self._on_message(peer, message, body)
        except BlockingIOError:
            return
        except (OSError, Broken):
            self._drop(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.socket.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return  # the next read reports the end of the connection
        if len(peer.unsent) > _MOST_UNSENT:
            return self._drop(peer)
        write = selectors.EVENT_WRITE if peer.unsent else 0
        self._selector.modify(peer.socket, selectors.EVENT_READ | write, peer)

    def _drop(self, peer: Peer) -> None:
        if peer in self._peers:
            self._close(peer)
            if peer.frames is not None:
                self._on_lost(peer)

    def _close(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
