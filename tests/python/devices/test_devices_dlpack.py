"""Arrays on CUDA devices through DLPack: capsules of both versions over the fake driver's memory, and their streams.

Further tests check refused tensors, and that each tensor is released once."""

import ctypes
import gc
import sys

import fake_devices
import farandole as fdl
import numpy as np
import pytest
from launch import checks_of, require
from test_devices import ENVIRONMENTS, mine, total, values

CUDA, CUDA_PINNED, CUDA_MANAGED = 2, 3, 13
CODES = {"i": 0, "u": 1, "f": 2}
READ_ONLY = 1

python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_IsValid.argtypes = python.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]  # fmt: skip


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


NAMES = {Managed: b"dltensor", Versioned: b"dltensor_versioned"}
_given = {}  # address: (struct, its target, its producer)


@Deleter
def give_back(address):
    _given.pop(address)[2].given_back += 1


@Deleter
def end_capsule(capsule):
    """As in the standard: the capsule releases a tensor that was not consumed."""
    for kind, name in NAMES.items():
        if python.PyCapsule_IsValid(capsule, name):
            kind.from_address(python.PyCapsule_GetPointer(capsule, name)).deleter(
                python.PyCapsule_GetPointer(capsule, name)
            )


class Exporter:
    """An array that supports only DLPack, version 1, and returns the requested version."""

    def __init__(self, array, place=(CUDA, 0), flags=0, major=1, strides=None, offset=0):
        self.array, self.place, self.flags, self.major, self.strides, self.offset = (
            array,
            place,
            flags,
            major,
            strides,
            offset,
        )
        self.asked = []
        self.given_back = 0

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked.append((stream, max_version))
        return self.capsule(Versioned if max_version is not None else Managed)

    def capsule(self, kind):
        struct = kind()
        shape = (ctypes.c_int64 * len(self.array.shape))(*self.array.shape)
        strides = self.strides and (ctypes.c_int64 * len(self.strides))(*self.strides)
        tensor = struct.tensor
        tensor.data, tensor.byte_offset = self.array.pointer - self.offset, self.offset
        tensor.device[:] = self.place
        tensor.code, tensor.bits, tensor.lanes = CODES[self.array.dtype.kind], self.array.dtype.itemsize * 8, 1
        tensor.ndim, tensor.shape = len(self.array.shape), shape
        if strides:
            tensor.strides = strides
        struct.deleter = give_back
        if kind is Versioned:
            struct.major, struct.minor, struct.flags = self.major, 0, self.flags
        address = ctypes.addressof(struct)
        _given[address] = struct, (shape, strides), self
        return python.PyCapsule_New(address, NAMES[kind], ctypes.cast(end_capsule, ctypes.c_void_p))

    def is_settled(self):
        """Whether all tensors have been released."""
        gc.collect()
        return self.given_back == len(self.asked) > 0 and not any(one[2] is self for one in _given.values())


class OldExporter(Exporter):
    """Older than version 1: accepts only a stream."""

    def __dlpack__(self, stream=None):
        self.asked.append((stream, None))
        return self.capsule(Managed)


def check_init():
    fdl.init()


def check_capsules_of_both_versions():
    for kind, asked in ((Exporter, (1, (1, 0))), (OldExporter, (1, None))):
        for dtype in ("float32", "int64", "uint8", "float16"):
            source, target = kind(mine((300, 2), dtype)), kind(fake_devices.array(np.zeros((300, 2), dtype)))
            assert fdl.allreduce(source, out=target) is target
            assert (target.array.get() == total((300, 2), dtype)).all(), (kind, dtype)
            assert set(source.asked) == set(target.asked) == {asked}  # the default stream, by its number in CUDA
            assert source.is_settled() and target.is_settled()


def check_ordered_and_asynchronous_calls():
    with fdl.Communicator() as comm:
        tensor = Exporter(mine((5000,), "float32"))
        comm.allreduce(tensor, tensor)
        assert (tensor.array.get() == total((5000,), "float32")).all() and tensor.is_settled()
        handles = [Exporter(mine((100,), "int32", i)) for i in range(5)]
        for request in [comm.iallreduce(one, one) for one in handles]:
            request.wait()
        del request
        for i, one in enumerate(handles):
            assert (one.array.get() == total((100,), "int32", i)).all() and one.is_settled()
    tensor = Exporter(mine((100,), "float32"))
    handle = fdl.allreduce_async(tensor, name="by dlpack", out=tensor)
    handle.wait()
    del handle
    assert (tensor.array.get() == total((100,), "float32")).all() and tensor.is_settled()


def check_byte_offsets():
    array = mine((64,), "float32")
    tensor = Exporter(array, offset=256)
    fdl.allreduce(tensor, out=tensor)
    assert (array.get() == total((64,), "float32")).all()


def check_work_on_the_producers_stream_precedes_the_operation():
    """The producer works on its own stream, for which the requested stream must wait."""
    source, target = fake_devices.array(np.full(1000, 5, "int32")), fake_devices.array(np.zeros(1000, "int32"))
    own = fake_devices.Stream("cuda:0")

    class OnAStream(Exporter):
        def __dlpack__(self, *, stream=None, max_version=None):
            fake_devices.Stream("cuda:0", stream).wait_stream(own)
            return super().__dlpack__(stream=stream, max_version=max_version)

    library = fake_devices.driver()
    library.fake_cuda_hold()
    copy = library.cuMemcpyAsync
    copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    fake_devices.with_context(0, lambda: copy(target.pointer, source.pointer, 4000, own.cuda_stream))
    tensor = OnAStream(target)
    handle = fdl.allreduce_async(tensor, name="on a stream", out=tensor)
    library.fake_cuda_go_on()
    handle.wait()
    assert (target.get() == 5 * fdl.size()).all()


def check_streams_of_cuda_array_interface():
    """None: nothing to wait for. 1: the default stream. 2: each thread's own default stream, which only that thread can
    name, and the library has threads of its own. Others: as they are."""
    for stream in (None, 1, 2, fake_devices.Stream("cuda:0").cuda_stream):
        tensor = mine((1000,), "float32")
        tensor.stream = stream
        fdl.allreduce(tensor, name=f"stream.{stream == 1}.{stream == 2}.{stream is None}", out=tensor)
        assert (tensor.get() == total((1000,), "float32")).all(), stream
        with fdl.Communicator() as comm:
            comm.allreduce(tensor, tensor)
        assert (tensor.get() == total((1000,), "float32") * fdl.size()).all(), stream


def refused(error, text, call, *arguments, **options):
    with pytest.raises(error, match=text):
        call(*arguments, **options)


def check_read_only_arrays_are_rejected_as_output():
    locked = Exporter(mine((10,), "float32"), flags=READ_ONLY)
    refused(fdl.InvalidArgumentError, "Exporter is read-only", fdl.allreduce, locked, name="locked", out=locked)
    assert locked.is_settled()
    target = Exporter(fake_devices.array(np.zeros(10, "float32")))
    fdl.allreduce(locked, name="unlocked", out=target)
    assert (target.array.get() == total((10,), "float32")).all()
    assert (locked.array.get() == values(fdl.rank(), (10,), "float32")).all() and locked.is_settled()


def check_rejected_tensors_are_released():
    array = mine((4, 4), "float32")
    for text, exporter in (
        ("kind 13, which is not supported", Exporter(array, place=(CUDA_MANAGED, 0))),
        ("cuda:99: there is no such device", Exporter(array, place=(CUDA, 99))),
        ("must be contiguous", Exporter(array, strides=[1, 4])),
        ("gives DLPack 2.0", Exporter(array, major=2)),
    ):
        refused(fdl.InvalidArgumentError, text, fdl.allreduce, exporter, name=text, out=exporter)
        assert exporter.is_settled(), text
    refused(
        fdl.InvalidArgumentError,
        "must be the same",
        fdl.allreduce,
        Exporter(array),
        out=Exporter(mine((3,), "float32")),
    )
    gc.collect()
    assert not _given


def check_a_capsule_is_consumed_once():
    class Forgetful(Exporter):
        def __dlpack__(self, **asked):
            capsule = super().__dlpack__(**asked)
            python.PyCapsule_SetName(capsule, b"used_dltensor")
            self.taken = capsule
            return capsule

    tensor = Forgetful(mine((4,), "float32"))
    refused(fdl.InvalidArgumentError, "was consumed already", fdl.allreduce, tensor, name="taken", out=tensor)
    del tensor.taken
    gc.collect()
    assert tensor.given_back == 0  # the consumer releases it
    _given.clear()


def check_errors_of_the_producer_are_raised():
    class Broken(Exporter):
        def __dlpack__(self, **asked):
            raise BufferError("this array is not lent")

    refused(BufferError, "array is not lent", fdl.allreduce, Broken(mine((4,), "float32")), name="broken")


@pytest.mark.parametrize("by", ENVIRONMENTS)
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_devices_by_dlpack(check, by):
    require(sys.modules[__name__], 2, check, ENVIRONMENTS[by])
