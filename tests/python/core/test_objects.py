"""Objects between ranks: their values, the memory they need, and that all ranks raise a failure of one rank."""

import mmap
import os
import resource
import tempfile
import threading

import farandole
import farandole.torch as hvd
import numpy as np
import pytest
import torch
from farandole import core, objects
from launch import launch

RANKS = 2
MIB = 1 << 20


def broadcast(thing, name=None):
    return objects.broadcast_object(thing, 0, name or "thing", core.world_group())


def things():
    """Objects with sizes around the limit above which parts are sent separately."""
    large = objects._LARGE_BYTES
    for size in (0, 1, 65_536, 100_000, large - 1, large, large + 1, 3 * MIB):
        yield bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        yield bytearray(b"y" * size)
        yield "z" * size
        yield np.arange(size, dtype=np.uint8)
    yield None
    yield {"a": [np.arange(large), b"b" * large, "c" * large, {"d": np.arange(3)}], "e": np.ones((large, 2), order="F")}
    yield [np.arange(2 * large)[::2], np.float32(1), (1, 2)]
    yield lambda number: number + 1


def alike(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return one(1) == other(1) if callable(one) else one == other


def check_objects_are_received():
    farandole.init()
    for number, thing in enumerate(things()):
        got = broadcast(thing if farandole.rank() == 0 else None, f"thing.{number}")
        assert type(got) is type(thing) and alike(got, thing), number
        assert farandole.rank() != 0 or got is thing


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_objects_are_received(transport):
    launch(RANKS, check_objects_are_received, {"FARANDOLE_TRANSPORT": transport})


def check_received_arrays_can_be_written():
    farandole.init()
    array, small = broadcast([np.zeros(MIB), np.zeros(2)])
    array += 1
    small += 1
    assert array.sum() == MIB and small.sum() == 2


def test_received_arrays_can_be_written():
    launch(RANKS, check_received_arrays_can_be_written)


def check_a_root_only_reads_its_object():
    """Read-only memory of the root is sent without a copy."""
    farandole.init()
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(MIB))
        file.flush()
        memory = mmap.mmap(file.fileno(), MIB, prot=mmap.PROT_READ)
        data = np.frombuffer(memory, np.uint8)
        got = broadcast(data) if farandole.rank() == 0 else broadcast(None)
        assert got.shape == (MIB,) and not got.flags.writeable
        del data, got


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_root_only_reads_its_object(transport):
    launch(RANKS, check_a_root_only_reads_its_object, {"FARANDOLE_TRANSPORT": transport})


def check_tensors_are_received():
    hvd.init()
    mine = hvd.rank() == 0
    sizes = [(), (0, 3), (2, 3), (MIB,)]
    dtypes = [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.float8_e5m2]
    tensors = [torch.ones(size).to(dtype) for size in sizes for dtype in dtypes]
    tensors += [
        torch.arange(12.0).view(3, 4).t(),
        torch.eye(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
    ]
    tensors += [torch.nn.Parameter(torch.ones(MIB)), torch.ones(2, requires_grad=True)]
    got = hvd.broadcast_object(tensors if mine else None)
    for one, other in zip(got, tensors, strict=True):
        assert type(one) is type(other) and one.requires_grad == other.requires_grad
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one.to_dense().to(torch.complex128), other.to_dense().to(torch.complex128))
    with torch.no_grad():
        got[3 * len(dtypes)] += 1


def test_tensors_are_received():
    launch(RANKS, check_tensors_are_received)


# ---- Memory
# -----------------------------------------------------------------------------------------------------------

OBJECT_MIB = 200


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(kind):
    if kind == "bytes":
        return b"x" * (OBJECT_MIB * MIB)
    if kind == "numpy":
        return {"weights": np.ones(OBJECT_MIB * MIB // 4, np.float32), "step": 1}
    return {"weights": torch.ones(OBJECT_MIB * MIB // 4), "step": 1}


def check_an_object_is_not_copied(kind, copies_of_receiver):
    hvd.init()
    hvd.broadcast_object(1, name="first")
    before = peak_mib()
    got = hvd.broadcast_object(make(kind) if hvd.rank() == 0 else None, name="large")
    taken = peak_mib() - before
    assert len(got) in (2, OBJECT_MIB * MIB)
    copies = 1 if hvd.rank() == 0 else copies_of_receiver
    assert taken < (copies + 0.2) * OBJECT_MIB, f"{taken:.0f} MiB for an object of {OBJECT_MIB}"


def check_arrays_are_not_copied():
    check_an_object_is_not_copied("numpy", 1)


def check_tensors_are_not_copied():
    check_an_object_is_not_copied("tensor", 1)


def check_bytes_are_copied_once_by_receivers():
    check_an_object_is_not_copied("bytes", 2)  # unpickling copies bytes


@pytest.mark.parametrize(
    "check", [check_arrays_are_not_copied, check_tensors_are_not_copied, check_bytes_are_copied_once_by_receivers]
)
def test_an_object_is_not_copied_by_its_root(check):
    launch(RANKS, check)


# ---- Failures
# ---------------------------------------------------------------------------------------------------------


def check_all_ranks_raise_when_the_root_cannot_pickle():
    hvd.init()
    for call in (hvd.broadcast_object, hvd.broadcast_object):
        kind, text = (TypeError, "lock") if hvd.rank() == 0 else (ValueError, "rank 0, the root, cannot pickle .*lock")
        with pytest.raises(kind, match=text):
            call(threading.Lock() if hvd.rank() == 0 else None)
    assert hvd.broadcast_object(hvd.rank()) == 0


def test_all_ranks_raise_when_the_root_cannot_pickle():
    launch(RANKS, check_all_ranks_raise_when_the_root_cannot_pickle)


def check_all_ranks_raise_when_one_cannot_pickle():
    hvd.init()
    kind, text = (TypeError, "lock") if hvd.rank() == 1 else (ValueError, "rank 1 cannot pickle its object")
    with pytest.raises(kind, match=text):
        hvd.allgather_object(threading.Lock() if hvd.rank() == 1 else "x")
    assert hvd.allgather_object(hvd.rank()) == [0, 1]


def test_all_ranks_raise_when_one_cannot_pickle():
    launch(RANKS, check_all_ranks_raise_when_one_cannot_pickle)
