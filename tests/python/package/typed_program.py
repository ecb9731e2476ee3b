"""A program whose types mypy and pyright check (tests/types.sh). The tests do not run it."""

from __future__ import annotations

import farandole


def train(values: list[float]) -> float:
    farandole.init(transport="shm")
    total: float = farandole.allreduce(values, op="sum", name="values")[0]
    handle = farandole.allgather_async(values, name="gathered")
    if not handle.done():
        handle.wait(timeout=10)
    with farandole.Communicator() as comm:
        request = comm.iallreduce(values, op=farandole.Op.MAX, timeout=5.0)
        request.wait()
        buffer = bytearray(4)
        received: bytearray = comm.recv(buffer, (comm.rank + 1) % comm.size, timeout=1)
        comm.send(received, 0)
    try:
        farandole.barrier()
    except farandole.PeerLostError as error:
        print(error.culprit_rank)
    results: list[int] = farandole.run(len, args=(values,), num_proc=2)
    return total + sum(results)
