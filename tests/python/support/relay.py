"""A relay on the first of the two hosts of two_hosts.py: it takes connections of the other host and edits their bytes.

    python relay.py EDIT        prints "ready" and relays until it is killed

The kernel redirects every connection from the other host, except those to the coordinator, to the relay (nftables).
With `hold` it redirects those to the coordinator alone. An edit changes what a relay can change without the job's key:

    nothing             all bytes pass
    flip:N              one bit of byte N of each direction of each connection
    repeat:N drop:N     the piece that holds byte N comes twice, or 7 of its bytes are missing
    withhold:N          no byte from N on passes, although the relay acknowledges all
    exchange:OLD:NEW    one text for another of the same length
    agreement           one bit of each agreement message
    hold:SECONDS:FILE   once FILE exists, what the caller sends next is late by so much, as if packets were lost. If the
                        caller's kernel resets the connection meanwhile, it does not send those packets again.
"""

import os
import select
import socket
import struct
import subprocess
import sys
import threading

PORT, COORDINATOR = 7777, 29500
RULES = """
table ip relay {{
  chain incoming {{
    type nat hook prerouting priority -100;
    tcp dport {ports} redirect to :{to}
  }}
}}
"""
SO_ORIGINAL_DST = 80


def edited(edit, data, before):
    """`data` follows `before` bytes of this direction."""
    name, *rest = edit.split(":")
    if name == "exchange":
        return data.replace(rest[0].encode(), rest[1].encode())
    if name == "agreement":
        changed = bytearray(data)
        for mark in (b"FDRQ", b"FDPL"):
            at = data.find(mark)
            while at >= 0:
                changed[at + 8] ^= 1
                at = data.find(mark, at + 1)
        return bytes(changed)
    at = int(rest[0]) - before if rest else -1
    if name == "withhold" and at < 0:
        return b""
    if not 0 <= at < len(data):
        return data
    if name == "flip":
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    if name == "withhold":
        return data[:at]
    return data + data if name == "repeat" else data[:at] + data[at + 7 :]


def carry(edit, source, target):
    before = 0
    try:
        while data := source.recv(65536):
            target.sendall(edited(edit, data, before))
            before += len(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            end.close()


def hold(seconds, file, source, target):
    """Carries bytes from the caller to the coordinator."""
    held = False
    try:
        while data := source.recv(65536):
            if not held and os.path.exists(file):
                held = True
                ended = select.poll()
                ended.register(source, 0)  # errors alone
                if ended.poll(1000 * float(seconds)):
                    break
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR if held else socket.SHUT_WR)
    except OSError:
        target.shutdown(socket.SHUT_RDWR)


def relay(edit, caller):
    _, port, address = struct.unpack("!HH4s8x", caller.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16))
    try:
        called = socket.create_connection((socket.inet_ntoa(address), port))
    except OSError:
        return caller.close()  # nothing listens there yet, and the caller tries again
    for end in (caller, called):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    name, *rest = edit.split(":")
    there = (hold, *rest) if name == "hold" else (carry, edit)
    back = (carry, "nothing" if name == "hold" else edit)
    for (function, *arguments), *ends in ((there, caller, called), (back, called, caller)):
        threading.Thread(target=function, args=(*arguments, *ends), daemon=True).start()


def main(edit):
    listener = socket.create_server(("0.0.0.0", PORT))
    ports = COORDINATOR if edit.startswith("hold:") else f"!= {COORDINATOR}"
    subprocess.run(["nft", "-f", "-"], input=RULES.format(ports=ports, to=PORT), text=True, check=True)
    print("ready", flush=True)
    while True:
        relay(edit, listener.accept()[0])


if __name__ == "__main__":
    main(sys.argv[1])
