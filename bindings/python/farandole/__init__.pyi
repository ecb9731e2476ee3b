"""The types of `import farandole`. A tensor is any object with the buffer protocol, `__dlpack__` or
`__cuda_array_interface__`, a list, a number, or a tuple (pointer, dtype, shape); it has no common type. Results are
NumPy arrays for tensors on the CPU, and arrays of the tensor's own library on devices."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, Literal, TypeVar

from typing_extensions import Self, TypeAlias

from . import elastic, errors
from .errors import (
    AbortedError,
    AuthenticationError,
    Error,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ResourceError,
    ShutDownError,
    StallWarning,
    TimeoutError,
    TransportError,
    UnsupportedError,
)

__all__ = [
    "AVERAGE",
    "AbortedError",
    "AuthenticationError",
    "BIT_AND",
    "BIT_OR",
    "BIT_XOR",
    "Communicator",
    "Error",
    "Group",
    "Handle",
    "InternalError",
    "InvalidArgumentError",
    "LOGICAL_AND",
    "LOGICAL_OR",
    "LOGICAL_XOR",
    "MAX",
    "MIN",
    "MismatchError",
    "NotInitializedError",
    "Op",
    "PRODUCT",
    "PeerLostError",
    "ProcessSet",
    "RankError",
    "Request",
    "ResourceError",
    "SUM",
    "ShutDownError",
    "StallWarning",
    "TimeoutError",
    "TransportError",
    "UnsupportedError",
    "__version__",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "config",
    "cross_rank",
    "cross_size",
    "elastic",
    "empty",
    "errors",
    "explain",
    "get_cmake_dir",
    "get_include",
    "get_pkgconfig_dir",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "info",
    "init",
    "is_initialized",
    "join",
    "join_async",
    "leave_if_requested",
    "leave_if_told",
    "local_rank",
    "local_size",
    "metrics",
    "on_leave",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "run",
    "shrink",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "world_group",
]

__version__: str

Tensor: TypeAlias = Any
_Op: TypeAlias = Op | int | str
_Compression: TypeAlias = Literal["none", "int8", "int4", "float8_e4m3", "float8_e5m2", "bfloat16"]
_T = TypeVar("_T")
_R = TypeVar("_R")
_Callback = TypeVar("_Callback", bound=Callable[[float], object])

class Op(IntEnum):
    SUM = ...
    AVERAGE = ...
    MIN = ...
    MAX = ...
    PRODUCT = ...
    ADASUM = ...
    BIT_AND = ...
    BIT_OR = ...
    BIT_XOR = ...
    LOGICAL_AND = ...
    LOGICAL_OR = ...
    LOGICAL_XOR = ...

SUM: Op
AVERAGE: Op
MIN: Op
MAX: Op
PRODUCT: Op
BIT_AND: Op
BIT_OR: Op
BIT_XOR: Op
LOGICAL_AND: Op
LOGICAL_OR: Op
LOGICAL_XOR: Op

class Group:
    ranks: Sequence[int]
    rank: int | None
    def __init__(self, ranks: Sequence[int]) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def included(self) -> bool: ...
    def split(self, color: int, key: int = 0) -> Group | None: ...
    def free(self) -> None: ...

ProcessSet = Group

class Handle:
    error_bound: float
    def done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...

class Request:
    error_bound: float
    def test(self) -> bool: ...
    def wait(self) -> Any: ...

class Communicator:
    group: Group
    error_bound: float
    def __init__(self, group: Group | None = None) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def allreduce(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        op: _Op = ...,
        *,
        algorithm: str | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
        compression: _Compression | None = None,
    ) -> Any: ...
    def iallreduce(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        op: _Op = ...,
        *,
        algorithm: str | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
        compression: _Compression | None = None,
    ) -> Request: ...
    def reduce(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        op: _Op = ...,
        root: int = 0,
        *,
        algorithm: str | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
    ) -> Any: ...
    def ireduce(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        op: _Op = ...,
        root: int = 0,
        *,
        algorithm: str | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
    ) -> Request: ...
    def broadcast(
        self, tensor: _T, root: int = 0, *, algorithm: str | None = None, timeout: float | None = None
    ) -> _T: ...
    def ibroadcast(
        self, tensor: Tensor, root: int = 0, *, algorithm: str | None = None, timeout: float | None = None
    ) -> Request: ...
    def allgather(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        counts: Sequence[int] | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
        compression: _Compression | None = None,
    ) -> Any: ...
    def iallgather(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        counts: Sequence[int] | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
        compression: _Compression | None = None,
    ) -> Request: ...
    def reduce_scatter(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        counts: Sequence[int] | None = None,
        op: _Op = ...,
        *,
        algorithm: str | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
        compression: _Compression | None = None,
    ) -> Any: ...
    def ireduce_scatter(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        counts: Sequence[int] | None = None,
        op: _Op = ...,
        *,
        algorithm: str | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
        timeout: float | None = None,
        deterministic: bool | None = None,
        compression: _Compression | None = None,
    ) -> Request: ...
    def alltoall(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def ialltoall(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Request: ...
    def gather(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Any: ...
    def igather(
        self,
        tensor: Tensor,
        out: Tensor | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Request: ...
    def scatter(
        self,
        tensor: Tensor | None,
        out: _T | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> _T: ...
    def iscatter(
        self,
        tensor: Tensor | None,
        out: Tensor | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
    ) -> Request: ...
    def barrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> None: ...
    def ibarrier(self, *, algorithm: str | None = None, timeout: float | None = None) -> Request: ...
    def send(self, tensor: Tensor, peer: int, *, timeout: float | None = None) -> None: ...
    def recv(self, tensor: _T, peer: int, *, timeout: float | None = None) -> _T: ...
    def isend(self, tensor: Tensor, peer: int) -> Request: ...
    def irecv(self, tensor: Tensor, peer: int) -> Request: ...
    def abort(self, reason: str) -> None: ...
    def free(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class RankError(RuntimeError):
    rank: int
    text: str

def allreduce(
    tensor: Tensor,
    op: _Op = ...,
    *,
    name: str | None = None,
    out: Tensor | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    compression: _Compression | None = None,
) -> Any: ...
def allreduce_async(
    tensor: Tensor,
    op: _Op = ...,
    *,
    name: str | None = None,
    out: Tensor | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    compression: _Compression | None = None,
) -> Handle: ...
def grouped_allreduce(
    tensors: Sequence[Tensor],
    op: _Op = ...,
    *,
    name: str | None = None,
    out: Sequence[Tensor] | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    compression: _Compression | None = None,
) -> list[Any]: ...
def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    op: _Op = ...,
    *,
    name: str | None = None,
    out: Sequence[Tensor] | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    priority: int = 0,
    compression: _Compression | None = None,
) -> Handle: ...
def allgather(
    tensor: Tensor, *, name: str | None = None, group: Group | None = None, compression: _Compression | None = None
) -> Any: ...
def allgather_async(
    tensor: Tensor, *, name: str | None = None, group: Group | None = None, compression: _Compression | None = None
) -> Handle: ...
def grouped_allgather(
    tensors: Sequence[Tensor], *, name: str | None = None, group: Group | None = None
) -> list[Any]: ...
def grouped_allgather_async(
    tensors: Sequence[Tensor], *, name: str | None = None, group: Group | None = None
) -> Handle: ...
def broadcast(
    tensor: Tensor, root: int = 0, *, name: str | None = None, out: Tensor | None = None, group: Group | None = None
) -> Any: ...
def broadcast_async(
    tensor: Tensor, root: int = 0, *, name: str | None = None, out: Tensor | None = None, group: Group | None = None
) -> Handle: ...
def alltoall(
    tensor: Tensor, splits: Sequence[int] | None = None, *, name: str | None = None, group: Group | None = None
) -> Any: ...
def alltoall_async(
    tensor: Tensor, splits: Sequence[int] | None = None, *, name: str | None = None, group: Group | None = None
) -> Handle: ...
def reducescatter(
    tensor: Tensor,
    op: _Op = ...,
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: _Compression | None = None,
) -> Any: ...
def reducescatter_async(
    tensor: Tensor,
    op: _Op = ...,
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    compression: _Compression | None = None,
) -> Handle: ...
def grouped_reducescatter(
    tensors: Sequence[Tensor],
    op: _Op = ...,
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> list[Any]: ...
def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    op: _Op = ...,
    *,
    name: str | None = None,
    group: Group | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Handle: ...
def barrier(*, name: str | None = None, group: Group | None = None) -> None: ...
def barrier_async(*, name: str | None = None, group: Group | None = None) -> Handle: ...
def join(group: Group | None = None) -> int: ...
def join_async(group: Group | None = None) -> Handle: ...
def init(
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    rendezvous: str | None = None,
    job_key: str | None = None,
    comm: Any | None = None,
    **options: str | int | float | bool,
) -> None: ...
def shrink(timeout: float | None = ...) -> None: ...
def shutdown() -> None: ...
def is_initialized() -> bool: ...
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def world_group() -> Group: ...
def info() -> dict[str, Any]: ...
def metrics() -> dict[str, int]: ...
def config() -> str: ...
def explain(collective: str, ranks: int, bytes: int, algorithm: str = "auto") -> str: ...
def start_timeline(file_path: str, mark_cycles: bool = False) -> None: ...
def stop_timeline() -> None: ...
def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any: ...
def on_leave(callback: _Callback) -> _Callback: ...
def leave_if_requested() -> None: ...

leave_if_told = leave_if_requested

def get_include() -> str: ...
def get_cmake_dir() -> str: ...
def get_pkgconfig_dir() -> str: ...
def run(
    func: Callable[..., _R],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: bool | int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[_R]: ...
