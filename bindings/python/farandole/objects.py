"""Python objects between ranks.

Objects are pickled. Unpickling can run any code of the sender. That is safe here because each pickle is sealed from end
to end with a key that only the ranks of the job have, and checked before it is unpickled. Over several hosts without a
secret, others can compute that key; there objects are refused, unless FARANDOLE_TRUST_DERIVED_KEY is set.
"""

import collections
import copyreg
import functools
import io
import itertools
import math
import os
import pickle
import struct

from . import _native, errors
from .codes import UINT8, Kind, Op
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


def _submit(kind, data, name, group, shape, out=None, root=0, op=Op.SUM):
    pointer = _native.memory_of(data, False)[0]
    target = pointer if out is data else _native.memory_of(out, True)[0] if out is not None else 0
    one = Operation(int(kind), name, pointer, UINT8, shape, target, math.prod(shape), root=root, op=int(op))
    return _native.submit(group.member(), [one], (data, out))


def _run(*arguments):
    handle = _submit(*arguments)
    handle.wait()
    return handle


# Each message of this module is sealed from end to end, whatever carries it, and numbered (see world.MessageNumbers).
# An attacker between two hosts could otherwise exchange a pickle.
_ROW = struct.Struct("<QQ32s")  # of allgather_bytes: length, number, seal


def allgather_bytes(data, name, group):
    """The bytes of every rank of the group, in rank order. Lengths may differ."""
    native = group.member()
    number = group.numbers.next_number()
    seal = native.seal(f"{name}, {number}", [data])
    rows = _run(Kind.ALLGATHER, _ROW.pack(len(data), number, seal), f"{name}.sz", group, (1, _ROW.size))
    rows = list(_ROW.iter_unpack(bytes(rows.output(0)[0])))
    starts = list(itertools.accumulate((length for length, _, _ in rows), initial=0))
    whole = b""
    if starts[-1]:
        whole = bytes(_run(Kind.ALLGATHER, data, f"{name}.t", group, (len(data),)).output(0)[0])
    gathered = [whole[start:end] for start, end in zip(starts, starts[1:])]
    for rank, (one, (_, number, seal)) in enumerate(zip(gathered, rows)):
        native.open(rank, f"{name}, {number}", [one], seal)
        if rank != group.rank:
            group.numbers.accept(number, rank)
    return gathered


# A broadcast first sends a head, <name>.sz: the number of parts, how many of them form the pickled stream, the size of
# the first part, the number of the message, the seal of its contents and that of the head. If there are several parts,
# <name>.parts has the sizes of all and their seal. Then each part that is not empty is one operation: <name>.t,
# <name>.t1, <name>.t2 ... If the root fails, there are 0 parts, and <name>.t is its error text.
_HEAD = struct.Struct("<QQQQ32s")
_SEAL = struct.Struct("32s")
_HEAD_BYTES = _HEAD.size + _SEAL.size


def _send_head(count, joined, parts, name, group, root):
    """Sends the head of a message of the root. Returns the purpose of its seals."""
    native, number = group.member(), group.numbers.next_number()
    purpose = f"{name}, {number}"
    fields = _HEAD.pack(count, joined, memoryview(parts[0]).nbytes, number, native.seal(purpose, parts))
    head = bytearray(fields + native.seal(f"{name}, head", [fields]))
    _run(Kind.BROADCAST, head, f"{name}.sz", group, (_HEAD_BYTES,), head, root)
    return purpose


def _receive_head(name, group, root):
    """The count of parts, how many form the stream, the size of the first, the purpose and the seal of the contents."""
    head = bytearray(_HEAD_BYTES)
    _run(Kind.BROADCAST, head, f"{name}.sz", group, (_HEAD_BYTES,), head, root)
    fields = memoryview(head)[: _HEAD.size]
    group.member().open(root, f"{name}, head", [fields], bytes(head[_HEAD.size :]))
    count, joined, first, number, seal = _HEAD.unpack(fields)
    group.numbers.accept(number, root)
    return count, joined, first, f"{name}, {number}", seal


def _broadcast_parts(parts, joined, root, name, group):
    """Sends the root's parts without copying them. Other ranks pass None as `parts`.

    They get the first `joined` parts in one bytearray, and a bytearray for each of the others.
    """
    native = group.member()
    if group.rank == root:
        purpose = _send_head(len(parts), joined, parts, name, group, root)
        sizes = [memoryview(part).nbytes for part in parts]
        if len(sizes) > 1:
            fields = struct.pack(f"<{len(sizes)}Q", *sizes)
            table = bytearray(fields + native.seal(f"{purpose}, sizes", [fields]))
            _run(Kind.BROADCAST, table, f"{name}.parts", group, (len(table),), table, root)
        _send_or_receive(parts, sizes, root, name, group)
        return None
    count, joined, first, purpose, seal = _receive_head(name, group, root)
    if count == 0:
        _raise_failure_of_root(first, purpose, seal, root, name, group)
    sizes = [first]
    if count > 1:
        table = bytearray(8 * count + _SEAL.size)
        _run(Kind.BROADCAST, table, f"{name}.parts", group, (len(table),), table, root)
        native.open(root, f"{purpose}, sizes", [memoryview(table)[: 8 * count]], bytes(table[8 * count :]))
        sizes = struct.unpack_from(f"<{count}Q", table)
    stream = bytearray(sum(sizes[:joined]))
    others = [bytearray(size) for size in sizes[joined:]]
    view, start, targets = memoryview(stream), 0, []
    for size in sizes[:joined]:
        targets.append(view[start : start + size])
        start += size
    _send_or_receive([*targets, *others], sizes, root, name, group)
    native.open(root, purpose, [*targets, *others], seal)
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
    _send_head(0, 0, [text], name, group, root)
    _run(Kind.BROADCAST, text, f"{name}.t", group, (len(text),), text, root)


def _raise_failure_of_root(size, purpose, seal, root, name, group):
    text = bytearray(size)
    _run(Kind.BROADCAST, text, f"{name}.t", group, (size,), text, root)
    group.member().open(root, purpose, [text], seal)
    raise errors.InvalidArgumentError(
        f"broadcast_object: rank {group.ranks[root]}, the root, cannot pickle its object: {text.decode()}"
    )


def broadcast_bytes(data, root, name, group):
    """The bytes of rank `root` of the group.

    The root gets its own object back; others may pass None and get a bytearray.
    """
    received = _broadcast_parts([data], 1, root, name, group)
    return data if received is None else received[0]


def maxima(numbers, name, group):
    """The largest of each of the numbers, which are 0 to 255, over the ranks of the group, by one operation."""
    memory = bytearray(numbers)
    _run(Kind.ALLREDUCE, memory, name, group, (len(memory),), memory, 0, Op.MAX)
    return list(memory)


def is_any(flag, name, group):
    """Whether `flag` is true on at least one rank of the group, by one operation."""
    return bool(maxima([bool(flag)], name, group)[0])


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

    The root gets its own object back. All ranks raise if the root cannot pickle it, and AuthenticationError if the job
    has no secret and the ranks are on several hosts.
    """
    errors.checked_text(name, "name")
    group.member().check_trust()
    if group.rank != root:
        stream, apart = _broadcast_parts(None, 0, root, name, group)
        return pickle.loads(stream, buffers=apart)
    try:
        parts, joined = _parts_of(thing)
    except BaseException as error:  # KeyboardInterrupt too: the other ranks wait for the object
        _send_failure(error, root, name, group)
        raise
    _broadcast_parts(parts, joined, root, name, group)
    return thing


def allgather_object(thing, name, group):
    """The objects of all ranks of the group, in rank order.

    All ranks raise if one cannot pickle its object, and AuthenticationError as for broadcast_object.
    """
    errors.checked_text(name, "name")
    group.member().check_trust()
    try:
        data, failure = dumps(thing), None
    except BaseException as error:
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
