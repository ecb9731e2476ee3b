"""A proxy like the sidecar of a service mesh: a rule of nftables redirects all connections to the pod's ports here, and
the proxy connects to the container. It is ready late, accepts before the container listens, and delays all data.

    python mesh_sidecar.py SECONDS-UNTIL-READY DELAY-SECONDS
"""

import asyncio
import socket
import struct
import sys

PORT = 15006
RULES = f"""
table inet sidecar
delete table inet sidecar
table inet sidecar {{
  chain in {{
    type nat hook prerouting priority -100;
    iifname "eth0" tcp dport 29500-29563 redirect to :{PORT}
  }}
}}
"""
SO_ORIGINAL_DST = 80


async def carry(reader, writer, delay):
    while data := await reader.read(1 << 16):
        await asyncio.sleep(delay)
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(reader, writer, delay):
    there = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!H4s", there, 2)
    try:
        inner_reader, inner_writer = await asyncio.open_connection(socket.inet_ntoa(address), port)
    except OSError:  # the container does not listen yet
        return writer.close()
    print("carried", port, flush=True)
    try:
        await asyncio.gather(carry(reader, inner_writer, delay), carry(inner_reader, writer, delay))
    except OSError:
        writer.close()
        inner_writer.close()


async def main(ready_after, delay):
    await asyncio.sleep(ready_after)
    server = await asyncio.start_server(lambda *ends: serve(*ends, delay), "0.0.0.0", PORT)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), float(sys.argv[2])))
