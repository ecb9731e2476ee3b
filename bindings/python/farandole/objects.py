"""Python objects between ranks.

They travel pickled. Unpickling runs whatever the sender wants, so it is done only because every connection of a job is
authenticated: who does not know the job's key cannot send a byte that arrives here.
"""

import io
import math
import os
import pickle

from . import _native
from .core import Kind, Operation

_UINT8 = 0


def pickler():
    """cloudpickle also takes functions and classes of the main program; without it the standard pickle does."""
    try:
        import cloudpickle

        return cloudpickle
    except ImportError:
        return pickle


def dumps(thing):
    stream = io.BytesIO()
    pickler().dump(thing, stream)
    return stream.getvalue()


def private_file(path):
    """A new file for pickled things, which nobody else can read or write."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _run(kind, data, name, group, shape, out=None, root=0):
    pointer = _native.memory_of(data, False)[0]
    target = _native.memory_of(out, True)[0] if out is not None else 0
    one = Operation(int(kind), name, pointer, _UINT8, shape, target, math.prod(shape), root=root)
    handle = _native.submit(group.member(), [one], (data, out))
    handle.wait()
    return handle


def allgather_bytes(data, name, group):
    """The bytes of every rank of the group, in rank order; lengths may differ."""
    lengths = _run(Kind.ALLGATHER, len(data).to_bytes(8, "little"), f"{name}.sz", group, (1, 8))
    memory, _, _ = lengths.output(0)
    sizes = [int.from_bytes(bytes(memory)[8 * rank : 8 * rank + 8], "little") for rank in range(group.size)]
    if sum(sizes) == 0:
        return [b""] * group.size
    memory, _, _ = _run(Kind.ALLGATHER, data, f"{name}.t", group, (len(data),)).output(0)
    whole = bytes(memory)
    starts = [sum(sizes[:rank]) for rank in range(group.size)]
    return [whole[start : start + length] for start, length in zip(starts, sizes)]


def broadcast_bytes(data, root, name, group):
    """The bytes of rank `root` of the group; others may give None."""
    length = bytearray(len(data).to_bytes(8, "little") if group.rank == root else 8)
    _run(Kind.BROADCAST, length, f"{name}.sz", group, (8,), length, root)
    whole = bytearray(data) if group.rank == root else bytearray(int.from_bytes(length, "little"))
    if whole:
        _run(Kind.BROADCAST, whole, f"{name}.t", group, (len(whole),), whole, root)
    return bytes(whole)


def broadcast_number(number, root, name, group):
    """The small number of rank `root` of the group: one operation, without pickling."""
    memory = bytearray(int(number).to_bytes(8, "little"))
    _run(Kind.BROADCAST, memory, name, group, (8,), memory, root)
    return int.from_bytes(memory, "little")


def broadcast_object(thing, root, name, group):
    """The object of rank `root` of the group, which gets its own back unchanged."""
    mine = group.rank == root
    received = broadcast_bytes(dumps(thing) if mine else None, root, name, group)
    return thing if mine else pickle.loads(received)


def allgather_object(thing, name, group):
    """The objects of all ranks of the group, in rank order."""
    return [pickle.loads(data) for data in allgather_bytes(dumps(thing), name, group)]
