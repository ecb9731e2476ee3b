"""farandole.keras: the API that programs written for Horovod use, for Keras 3 on PyTorch (KERAS_BACKEND=torch)."""

from .backend import require_torch

require_torch()

from ..basics import (  # noqa: E402
    Average,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ..basics import ProcessSet  # noqa: E402
from ..torch import Compression  # noqa: E402
from . import callbacks, elastic  # noqa: E402
from .optimizer import DistributedOptimizer, load_model  # noqa: E402
from .values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter  # noqa: E402
