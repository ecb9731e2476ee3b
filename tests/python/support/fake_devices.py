"""Arrays on the devices of the fake CUDA driver, in place of CuPy's arrays and of PyTorch's tensors on CUDA.

Device memory is closed to the CPU: a direct access to it crashes the process. The fake driver's streams are threads, so
that work which is not ordered with them shows.
"""

import contextlib
import ctypes
import functools
import os
import types

import numpy as np
import torch
from launch import ROOT

LIBRARIES = os.path.join(ROOT, "build", "lib")
CUDA = os.path.normpath(os.path.join(LIBRARIES, "libfake_cuda.so"))
NCCL = os.path.normpath(os.path.join(LIBRARIES, "libfake_nccl.so"))


def environment(nccl, **more):
    """Variables of ranks that use the fakes."""
    for library in (CUDA, NCCL) if nccl else (CUDA,):
        assert os.path.exists(library), f"{library} is missing: bash tests/run.sh python builds it"
    variables = {"FARANDOLE_CUDA_LIBRARY": CUDA, "FAKE_CUDA_DEVICES": "8", **more}
    if nccl:
        variables["FARANDOLE_NCCL_LIBRARY"] = NCCL
    else:
        variables["FARANDOLE_DEVICE_COLLECTIVES"] = "staged"
    return variables


@functools.cache
def driver():
    library = ctypes.CDLL(os.environ["FARANDOLE_CUDA_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.fake_cuda_new.restype = pointer
    library.fake_cuda_new.argtypes = [ctypes.c_int, size]
    library.fake_cuda_delete.argtypes = [pointer]
    library.fake_cuda_write.argtypes = [pointer, pointer, size]
    library.fake_cuda_read.argtypes = [pointer, pointer, size]
    library.fake_cuda_device_bytes.restype = size
    library.fake_cuda_calls.restype = size
    assert library.cuInit(0) == 0
    return library


@functools.cache
def nccl():
    """The fake NCCL that this process has loaded, with its counters."""
    return ctypes.CDLL(os.environ["FARANDOLE_NCCL_LIBRARY"])


def with_context(device, work):
    context = ctypes.c_void_p()
    library = driver()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert library.cuCtxPushCurrent_v2(context) == 0
    assert work() == 0
    assert library.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0


def synchronize(device=0):
    """Waits until the device has finished all work."""
    with_context(device, driver().cuCtxSynchronize)


class Memory:
    """Memory of a device. It is freed with the last array that refers to it."""

    def __init__(self, nbytes, device):
        self.pointer = driver().fake_cuda_new(device, max(nbytes, 1))
        assert self.pointer, "the fake driver is out of memory"

    def __del__(self):
        driver().fake_cuda_delete(self.pointer)


class Array:
    """An array of NumPy's types on a device, with the part of CuPy's interface that the library uses."""

    def __init__(self, shape, dtype, device=0, memory=None, pointer=None):
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.device = device
        self.stream = 1  # the default one
        self._memory = memory or Memory(self.nbytes, device)
        self.pointer = pointer or self._memory.pointer

    @property
    def nbytes(self):
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer, False), "version": 3,
                "strides": None, "stream": self.stream}  # fmt: skip

    def __dlpack_device__(self):
        return 2, self.device

    def __array_namespace__(self):
        return _library(self.device)

    def view(self, dtype):
        dtype = np.dtype(dtype)
        return Array((self.nbytes // dtype.itemsize,), dtype, self.device, self._memory, self.pointer)

    def reshape(self, shape):
        return Array(shape, self.dtype, self.device, self._memory, self.pointer)

    def copy(self):
        """Runs in the order of the default stream, as in CuPy."""
        made = Array(self.shape, self.dtype, self.device)
        copy = driver().cuMemcpyAsync
        copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        with_context(self.device, lambda: copy(made.pointer, self.pointer, self.nbytes, 1) if self.nbytes else 0)
        return made

    def get(self):
        """A copy on the CPU, after the device has finished."""
        synchronize(self.device)
        host = np.empty(self.shape, self.dtype)
        driver().fake_cuda_read(self.pointer, host.ctypes.data, self.nbytes)
        return host


def array(values, dtype=None, device=0):
    host = np.ascontiguousarray(values, dtype)
    result = Array(host.shape, host.dtype, device)
    driver().fake_cuda_write(result.pointer, host.ctypes.data, result.nbytes)
    return result


def _adopted(other, device):
    facts = other.__cuda_array_interface__
    return Array(facts["shape"], facts["typestr"], device, other, facts["data"][0])


def _library(device):
    return types.SimpleNamespace(
        empty=lambda shape, dtype: Array((shape,) if isinstance(shape, int) else shape, dtype, device),
        asarray=lambda other: _adopted(other, device),
    )


class Tensor(torch.Tensor):
    """A tensor that claims to be on a CUDA device, because this build of PyTorch has none. PyTorch's own functions use
    a tensor on the CPU, `mirror`; the library uses the device."""

    @staticmethod
    def __new__(cls, values, device=0):
        values = torch.as_tensor(values)
        tensor = torch.Tensor._make_subclass(cls, values)
        tensor.array = Array(
            (values.numel(),), np.uint8 if values.dtype == torch.bool else _NUMPY[values.dtype], device
        )
        tensor.put(values)
        return tensor

    device = property(lambda self: torch.device("cuda", self.array.device))
    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)

    def data_ptr(self):
        return self.array.pointer

    def record_stream(self, stream):
        """Records the call. The fake driver does not reuse the memory."""
        self.recorded = [*getattr(self, "recorded", ()), stream.cuda_stream]

    def put(self, values):
        flat = values.detach().contiguous().view(-1)
        host = flat.view(torch.int16).numpy() if values.dtype == torch.bfloat16 else flat.numpy()
        driver().fake_cuda_write(self.array.pointer, host.ctypes.data, self.array.nbytes)

    def get(self):
        host = self.array.get()
        flat = torch.from_numpy(host.view(np.int16) if self.dtype == torch.bfloat16 else host)
        return flat.view(self.dtype).view(self.shape)

    @classmethod
    def __torch_function__(cls, function, types_, arguments=(), options=None):
        if function is torch.Tensor.detach:
            return arguments[0]
        if function is torch.Tensor.copy_:
            arguments[0].put(arguments[1])
            return arguments[0]
        if function is torch.empty_like:
            return Tensor(torch.zeros(arguments[0].shape, dtype=arguments[0].dtype), arguments[0].array.device)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **(options or {}))


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int32: np.int32, torch.int64: np.int64,
          torch.uint8: np.uint8, torch.int8: np.int8, torch.float16: np.float16, torch.bfloat16: np.uint16}  # fmt: skip


class Stream:
    """torch.cuda.Stream on the fake driver."""

    def __init__(self, device, handle=None):
        self.device = torch.device(device)
        if handle is None:
            made = ctypes.c_void_p()
            with_context(self.device.index, lambda: driver().cuStreamCreate(ctypes.byref(made), 1))
            handle = made.value
        self.cuda_stream = handle

    def wait_stream(self, other):
        event = ctypes.c_void_p()
        library = driver()

        def wait():
            assert library.cuEventCreate(ctypes.byref(event), 2) == 0
            assert library.cuEventRecord(event, ctypes.c_void_p(other.cuda_stream)) == 0
            return library.cuStreamWaitEvent(ctypes.c_void_p(self.cuda_stream), event, 0)

        with_context(self.device.index, wait)


_current = [1]  # the default one


@contextlib.contextmanager
def on_stream(stream):
    """torch.cuda.stream: the current one."""
    _current.append(stream.cuda_stream)
    try:
        yield stream
    finally:
        _current.pop()


def _empty(*arguments, device=None, **options):
    made = _torch_empty(*arguments, **options, device=None if _is_cuda(device) else device)
    return Tensor(made.zero_(), torch.device(device).index or 0) if _is_cuda(device) else made


def _is_cuda(device):
    return device is not None and torch.device(device).type == "cuda"


_torch_empty = torch.empty


def fake_torch_cuda():
    """Makes torch use streams and memory of the fake driver in this process."""
    torch.empty = _empty
    torch.cuda.Stream = Stream
    torch.cuda.current_stream = lambda device=None: Stream(device, _current[-1])
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
