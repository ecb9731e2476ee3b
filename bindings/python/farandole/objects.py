"""Python objects between ranks.

Objects are pickled. Unpickling can run any code of the sender. That is safe here because every connection of a job is
authenticated: a process without the job's key cannot send data to a rank.
"""

import collections
import copyreg
import functools
import io
import math
import os
import pickle
import struct

from . import _native, errors
from .codes import UINT8, Kind
from .operation import Operation

_LARGE_BYTES = 1 << 18  # memory of this size is sent without a copy; smaller parts are joined

reducers = {}  # for pickle: {class: function}, with which another layer pickles a class without copying its memory


def pickler():
    """cloudpickle, which also pickles functions and classes of the main program; else the standard pickle."""
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
    """Creates a file for pickled objects that only this user can read and write."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _submit(kind, data, name, group, shape, out=None, root=0):
    pointer = _native.memory_of(data, False)[0]
    target = pointer if out is data else _native.memory_of(out, True)[0] if out is not None else 0
    one = Operation(int(kind), name, pointer, UINT8, shape, target, math.prod(shape), root=root)
    return _native.submit(group.member(), [one], (data, out))


def _run(*arguments):
    handle = _submit(*arguments)
    handle.wait()
    return handle


def allgather_bytes(data, name, group):
    """The bytes of every rank of the group, in rank order. Lengths may differ."""
    lengths = _run(Kind.ALLGATHER, len(data).to_bytes(8, "little"), f"{name}.sz", group, (1, 8))
    memory, _, _ = lengths.output(0)
    sizes = [int.from_bytes(bytes(memory)[8 * rank : 8 * rank + 8], "little") for rank in range(group.size)]
    if sum(sizes) == 0:
        return [b""] * group.size
    memory, _, _ = _run(Kind.ALLGATHER, data, f"{name}.t", group, (len(data),)).output(0)
    whole = bytes(memory)
    starts = [sum(sizes[:rank]) for rank in range(group.size)]
    return [whole[start : start + length] for start, length in zip(starts, sizes)]


# A broadcast first sends three numbers, <name>.sz: the number of parts, how many of them form the pickled stream, and
# the size of the first part. If there are several parts, <name>.parts has the sizes of all. Then each part that is not
# empty is one operation: <name>.t, <name>.t1, <name>.t2 ... If the root fails, there are 0 parts, and <name>.t is its
# error text.
_HEAD = struct.Struct("<QQQ")


def _broadcast_parts(parts, joined, root, name, group):
    """Sends the root's parts without copying them. Other ranks pass None as `parts`.

    They get the first `joined` parts in one bytearray, and a bytearray for each of the others.
    """
    if group.rank == root:
        head = bytearray(_HEAD.pack(len(parts), joined, memoryview(parts[0]).nbytes))
        _run(Kind.BROADCAST, head, f"{name}.sz", group, (_HEAD.size,), head, root)
        sizes = [memoryview(part).nbytes for part in parts]
        if len(sizes) > 1:
            table = bytearray(struct.pack(f"<{len(sizes)}Q", *sizes))
            _run(Kind.BROADCAST, table, f"{name}.parts", group, (len(table),), table, root)
        _send_or_receive(parts, sizes, root, name, group)
        return None
    head = bytearray(_HEAD.size)
    _run(Kind.BROADCAST, head, f"{name}.sz", group, (_HEAD.size,), head, root)
    count, joined, first = _HEAD.unpack(head)
    if count == 0:
        _raise_failure_of_root(first, root, name, group)
    sizes = [first]
    if count > 1:
        table = bytearray(8 * count)
        _run(Kind.BROADCAST, table, f"{name}.parts", group, (len(table),), table, root)
        sizes = struct.unpack(f"<{count}Q", table)
    stream = bytearray(sum(sizes[:joined]))
    others = [bytearray(size) for size in sizes[joined:]]
    view, start, targets = memoryview(stream), 0, []
    for size in sizes[:joined]:
        targets.append(view[start : start + size])
        start += size
    _send_or_receive([*targets, *others], sizes, root, name, group)
    return stream, others


def _send_or_receive(parts, sizes, root, name, group):
    """Sends or receives all parts at once, in place. The root's memory is only read."""
    handles = [
        _submit(Kind.BROADCAST, part, f"{name}.t{number or ''}", group, (size,), part, root)
        for number, (part, size) in enumerate(zip(parts, sizes))
        if size
    ]
    for handle in handles:
        handle.wait()


def _send_failure(error, root, name, group):
    """Sends the root's error instead of its object, because the other ranks wait for it."""
    text = bytearray(f"{type(error).__name__}: {error}".encode(errors="replace"))
    head = bytearray(_HEAD.pack(0, 0, len(text)))
    _run(Kind.BROADCAST, head, f"{name}.sz", group, (_HEAD.size,), head, root)
    _run(Kind.BROADCAST, text, f"{name}.t", group, (len(text),), text, root)


def _raise_failure_of_root(size, root, name, group):
    text = bytearray(size)
    _run(Kind.BROADCAST, text, f"{name}.t", group, (size,), text, root)
    raise errors.InvalidArgumentError(
        f"broadcast_object: rank {group.ranks[root]}, the root, cannot pickle its object: {text.decode()}"
    )


def broadcast_bytes(data, root, name, group):
    """The bytes of rank `root` of the group.

    The root gets its own object back; others may pass None and get a bytearray.
    """
    received = _broadcast_parts([data], 1, root, name, group)
    return data if received is None else received[0]


def broadcast_number(number, root, name, group):
    """The small number of rank `root` of the group, by one operation and without pickling."""
    memory = bytearray(int(number).to_bytes(8, "little"))
    _run(Kind.BROADCAST, memory, name, group, (8,), memory, root)
    return int.from_bytes(memory, "little")


@functools.cache
def _pickler_class():
    base = pickler().Pickler
    table = collections.ChainMap(reducers, getattr(base, "dispatch_table", copyreg.dispatch_table))
    return type("Pickler", (base,), {"dispatch_table": table})


class _Stream:
    """The file that a pickler writes to. It keeps large objects of the stream as they are and does not copy them."""

    def __init__(self):
        self.pieces = []
        self._small = bytearray()

    def write(self, data):
        if isinstance(data, pickle.PickleBuffer):
            data = data.raw()
        if len(data) < _LARGE_BYTES:
            self._small += data
        else:
            self.close()
            self.pieces.append(data)

    def close(self):
        if self._small:
            self.pieces.append(self._small)
            self._small = bytearray()


def _parts_of(thing):
    """The parts of a pickled object, and how many of them form the stream.

    The other parts are the memory of large arrays, which receivers use without a copy (pickle's protocol 5).
    """
    stream, apart = _Stream(), []

    def stays_in_stream(buffer):
        memory = buffer.raw()
        if memory.nbytes >= _LARGE_BYTES:
            apart.append(memory)
        return memory.nbytes < _LARGE_BYTES

    _pickler_class()(stream, 5, buffer_callback=stays_in_stream).dump(thing)
    stream.close()
    return stream.pieces + apart, len(stream.pieces)


def broadcast_object(thing, root, name, group):
    """The object of rank `root` of the group.

    The root gets its own object back. All ranks raise if the root cannot pickle it.
    """
    if group.rank != root:
        stream, apart = _broadcast_parts(None, 0, root, name, group)
        return pickle.loads(stream, buffers=apart)
    try:
        parts, joined = _parts_of(thing)
    except Exception as error:
        _send_failure(error, root, name, group)
        raise
    _broadcast_parts(parts, joined, root, name, group)
    return thing


def allgather_object(thing, name, group):
    """The objects of all ranks of the group, in rank order. All ranks raise if one cannot pickle its object."""
    try:
        data, failure = dumps(thing), None
    except Exception as error:
        data, failure = b"", error
    gathered = allgather_bytes(data, name, group)
    if failure is not None:
        raise failure
    failed = [str(group.ranks[rank]) for rank, data in enumerate(gathered) if not data]
    if failed:
        raise errors.InvalidArgumentError(
            f"allgather_object: rank {failed[0]} cannot pickle its object; see the error that it raised"
        )
    return [pickle.loads(data) for data in gathered]
