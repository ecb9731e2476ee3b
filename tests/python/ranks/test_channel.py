"""The channel between a driver and its agents: only processes with the key get in, and every frame is checked."""

import contextlib
import os
import socket
import threading
import time

import farandole
import pytest
from farandole.integrations.ranks.channel import MOST_BYTES, Broken, Channel, Frames, Greeting
from farandole.integrations.ranks.server import Server
from limits import allowed

KEY = "a key that only tests use"


def frames():
    return Frames(b"k" * 32, b"a", b"b"), Frames(b"k" * 32, b"b", b"a")


def test_frames_arrive_in_pieces_and_in_order():
    one, other = frames()
    data = one.encode({"kind": "hello"}) + one.encode({"kind": "ended"}, b"body\nwith lines")
    got = []
    for byte in data:
        got += other.decode(bytes([byte]))
    assert got == [({"kind": "hello"}, b""), ({"kind": "ended"}, b"body\nwith lines")]


@pytest.mark.parametrize("change", ["length", "payload", "hmac", "repeated", "reflected", "reordered"])
def test_a_changed_frame_is_refused(change):
    one, other = frames()
    first, second = bytearray(one.encode({"n": 1})), bytearray(one.encode({"n": 2}))
    if change == "length":
        first[:4] = (MOST_BYTES + 1).to_bytes(4, "big")
    elif change == "payload":
        first[6] ^= 1
    elif change == "hmac":
        first[-1] ^= 1
    elif change == "repeated":
        other.decode(bytes(first))
    elif change == "reflected":
        other = one
    elif change == "reordered":
        first = second
    with pytest.raises(Broken):
        other.decode(bytes(first))


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(ValueError, match="exceeds"):
        frames()[0].encode({}, b"x" * MOST_BYTES)


@contextlib.contextmanager
def serving():
    """A server in a thread, and the lists of what it has received and lost."""
    got, lost, stop = [], [], threading.Event()
    server = Server("127.0.0.1", None, KEY, lambda peer, *message: got.append((peer, *message)), lost.append)

    def work():
        while not stop.is_set():
            server.step(None)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield server, got, lost
    finally:
        stop.set()
        server.wake()
        thread.join()
        server.close()


def wait_for(condition):
    limit = time.monotonic() + allowed(30)
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_messages_in_both_directions_and_the_end_of_a_connection():
    with serving() as (server, got, lost):
        channel = Channel([("127.0.0.1", server.port)], KEY, 30)
        assert channel.own_address() == "127.0.0.1"
        channel.send({"kind": "hello"}, b"x" * 1_000_000)
        wait_for(lambda: got)
        peer, message, body = got[0]
        assert message == {"kind": "hello"} and body == b"x" * 1_000_000
        server.send(peer, {"kind": "start"})
        assert channel.receive() == [({"kind": "start"}, b"")]
        assert not lost
        channel.close()
        wait_for(lambda: lost == [peer])


def test_another_key_is_refused_on_both_sides():
    with serving() as (server, got, lost):
        with pytest.raises(farandole.AuthenticationError, match="another job's key"):
            Channel([("127.0.0.1", server.port)], "another key", 30)
        assert not got and not lost
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer():
            connection, _ = impostor.accept()
            with connection:
                connection.sendall(os.urandom(32))
                connection.recv(64)
                connection.sendall(os.urandom(32))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(farandole.AuthenticationError, match="does not have the job's key"):
            Channel([("127.0.0.1", impostor.getsockname()[1])], KEY, 30)
        thread.join()


def test_a_silent_or_absent_driver_is_reported_in_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(farandole.PeerLostError, match="did not complete the handshake"):
            Channel([("127.0.0.1", port)], KEY, 1)
    with pytest.raises(farandole.PeerLostError, match=f"cannot be reached at 127.0.0.1:{port}"):
        Channel([("127.0.0.1", port)], KEY, 1)


def test_strangers_get_nothing_and_do_not_keep_others_out():
    with serving() as (server, got, lost):
        strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(140)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\nHost: driver\r\nUser-Agent: a program with another protocol\r\n\r\n")
        assert len(strangers[0].recv(64)) == 32 and strangers[0].recv(64) == b""
        for one in strangers:
            one.close()
        Channel([("127.0.0.1", server.port)], KEY, 30).send({"kind": "hello"})
        wait_for(lambda: got)
        assert len(got) == 1


def test_the_proof_of_one_handshake_is_no_proof_in_another():
    first, second = Greeting(KEY), Greeting(KEY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proofs = []

        def take_proof():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(first.hello())
                proofs.append(connection.recv(64, socket.MSG_WAITALL))

        thread = threading.Thread(target=take_proof)
        thread.start()
        with pytest.raises(farandole.AuthenticationError):
            Channel([("127.0.0.1", listener.getsockname()[1])], KEY, 30)
        thread.join()
    assert first.take(proofs[0]) is not None
    with pytest.raises(Broken, match="without the job's key"):
        second.take(proofs[0])


def test_a_driver_without_a_free_port_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"no port of 127.0.0.1 from {port} to {port} is free"):
            Server("127.0.0.1", (port, port), KEY, None, None)
