"""Channel: authenticated messages between a driver and the workers that a job system has started, over TCP.

    driver -> worker   32 random bytes
    worker -> driver   32 random bytes, HMAC(key, "worker" + both)
    driver -> worker   HMAC(key, "driver" + both)
    then frames        length (4 bytes), header and body, HMAC(session, direction + number + header and body)

The session's key is HMAC(key, "session" + both), and HMAC is HMAC-SHA256. A frame is a JSON object, a line end and a
body of bytes. A receiver closes the connection at the first frame that is too long or has another HMAC, so bytes of
strangers reach neither json nor pickle.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import time

from ... import errors

_NONCE = _MAC = 32
_LENGTH = struct.Struct(">I")
MOST_BYTES = 4 << 20  # of a frame
KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 20_000}


class Broken(Exception):
    """The connection has ended, or its bytes are not those of a worker of this job."""


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _key(text: str) -> bytes:
    return hashlib.sha256(b"farandole channel " + text.encode()).digest()


class Frames:
    """The frames of one direction each: encode() those to send, decode() the bytes that have arrived."""

    def __init__(self, key: bytes, sends: bytes, receives: bytes):
        self._key, self._sends, self._receives = key, sends, receives
        self._sent = self._received = 0
        self._unread = bytearray()

    def encode(self, message: dict, body: bytes = b"") -> bytes:
        """ValueError if the message is longer than MOST_BYTES."""
        data = json.dumps(message).encode() + b"\n" + body
        if len(data) > MOST_BYTES:
            raise ValueError(f"a message of {len(data)} bytes exceeds {MOST_BYTES}")
        mac = _mac(self._key, self._sends, self._sent.to_bytes(8, "big"), data)
        self._sent += 1
        return _LENGTH.pack(len(data)) + data + mac

    def decode(self, data: bytes) -> list[tuple[dict, bytes]]:
        """The messages that `data` completes. Broken if a frame is not authentic."""
        self._unread += data
        messages = []
        while len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            if length > MOST_BYTES:
                raise Broken(f"a frame of {length} bytes")
            whole = _LENGTH.size + length + _MAC
            if len(self._unread) < whole:
                break
            payload = bytes(self._unread[_LENGTH.size : _LENGTH.size + length])
            mac = _mac(self._key, self._receives, self._received.to_bytes(8, "big"), payload)
            if not hmac.compare_digest(mac, bytes(self._unread[whole - _MAC : whole])):
                raise Broken("a frame with a wrong HMAC")
            self._received += 1
            del self._unread[:whole]
            header, _, body = payload.partition(b"\n")
            messages.append((json.loads(header), body))
        return messages


class Greeting:
    """The driver's side of the handshake with one worker: hello() first, then take() until it returns the frames."""

    def __init__(self, key: str):
        self._key, self._nonce, self._unread = _key(key), os.urandom(_NONCE), bytearray()

    def hello(self) -> bytes:
        return self._nonce

    def take(self, data: bytes) -> tuple[bytes, Frames, bytes] | None:
        """(reply, frames, unread bytes) once the worker has proved the key; None before. Broken if it has not."""
        self._unread += data
        if len(self._unread) < _NONCE + _MAC:
            return None
        theirs, proof = bytes(self._unread[:_NONCE]), bytes(self._unread[_NONCE : _NONCE + _MAC])
        both = self._nonce + theirs
        if not hmac.compare_digest(proof, _mac(self._key, b"worker", both)):
            raise Broken("a process without the job's key")
        frames = Frames(_mac(self._key, b"session", both), b"driver", b"worker")
        return _mac(self._key, b"driver", both), frames, bytes(self._unread[_NONCE + _MAC :])


class Channel:
    """The worker's connection to the driver. It blocks to send; receive() reads what has arrived."""

    def __init__(self, addresses: list[tuple[str, int]], key: str, timeout_s: float):
        """PeerLostError if no address answers within `timeout_s`; AuthenticationError if it has another key."""
        self.socket = _connect(addresses, time.monotonic() + timeout_s)
        try:
            nonce = self._exactly(_NONCE)
            mine = os.urandom(_NONCE)
            self.socket.sendall(mine + _mac(_key(key), b"worker", nonce + mine))
            if not hmac.compare_digest(self._exactly(_MAC), _mac(_key(key), b"driver", nonce + mine)):
                raise errors.AuthenticationError("the process at the driver's address does not have the job's key")
        except OSError as error:
            self.socket.close()
            raise errors.PeerLostError(f"the driver did not complete the handshake: {error}") from None
        except BaseException:
            self.socket.close()
            raise
        self._frames = Frames(_mac(_key(key), b"session", nonce + mine), b"worker", b"driver")
        self.socket.settimeout(300)  # for a driver that does not read

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise errors.AuthenticationError("the driver closed the connection: it has another job's key")
            data += more
        return data

    def own_address(self) -> str:
        """The address of this host towards the driver."""
        return self.socket.getsockname()[0]

    def send(self, message: dict, body: bytes = b"") -> None:
        """Broken if the driver is gone."""
        try:
            self.socket.sendall(self._frames.encode(message, body))
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self) -> list[tuple[dict, bytes]]:
        """The messages that have arrived. Blocks until there are bytes. Broken if the driver is gone."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            raise Broken(str(error)) from None
        if not data:
            raise Broken("the driver closed the connection")
        return self._frames.decode(data)

    def close(self) -> None:
        self.socket.close()


def watch_host(connection: socket.socket) -> None:
    """Lets the kernel end the connection within 20 s of the loss of the other host."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _connect(addresses: list[tuple[str, int]], deadline: float) -> socket.socket:
    failures = []
    for host, port in addresses:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            connection = socket.create_connection((host, port), timeout=left)
        except OSError as error:
            failures.append(f"{host}:{port}: {error}")
            continue
        connection.settimeout(max(1.0, deadline - time.monotonic()))
        watch_host(connection)
        return connection
    raise errors.PeerLostError(f"the driver cannot be reached at {'; '.join(failures)}")
