"""Errors name the rank, the operation and the remedy on every rank, with farandole's and Horovod's classes."""

import os
import pickle
import signal
import sys
import time

import farandole
import farandole.torch as hvd
import numpy as np
import pytest
import torch
from expect import fails
from launch import checks_of, launch, require


def mismatch(*parts, action):
    """The error is both a HorovodInternalError and a MismatchError, and the world stays usable."""
    error = fails(hvd.HorovodInternalError, *parts, action=action)
    assert isinstance(error, farandole.MismatchError), type(error).__mro__
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))


def check_dtype_differs():
    hvd.init()
    mine = torch.ones(3) if hvd.rank() == 0 else torch.ones(3, dtype=torch.int32)
    mismatch("allreduce.grad", "float32", "int32", "rank 0", "rank 1", action=lambda: hvd.allreduce(mine, name="grad"))


def check_shape_differs():
    mine = torch.ones(17, 2 + hvd.rank())
    mismatch("allreduce.shape", "[17, 2]", "[17, 3]", action=lambda: hvd.allreduce(mine, name="shape"))
    mismatch("broadcast.shape", "[17, 2]", "[17, 3]", action=lambda: hvd.broadcast(mine, 0, name="shape"))
    mismatch("allgather.shape", "[17, 2]", "[17, 3]", action=lambda: hvd.allgather(mine, name="shape"))
    mismatch("alltoall.shape", action=lambda: hvd.alltoall(torch.ones(hvd.size(), 2 + hvd.rank()), name="shape"))
    mismatch("reducescatter.shape", action=lambda: hvd.reducescatter(mine, name="shape"))


def check_op_differs():
    op = hvd.Sum if hvd.rank() == 0 else hvd.Max
    mismatch("allreduce.op", "sum", "max", action=lambda: hvd.allreduce(torch.ones(2), name="op", op=op))
    op = hvd.Sum if hvd.rank() == 0 else hvd.Average
    mismatch("reducescatter.op", action=lambda: hvd.reducescatter(torch.ones(2), name="op", op=op))


def check_scales_differ():
    scale = 1.0 + hvd.rank()
    mismatch("prescale", action=lambda: hvd.allreduce(torch.ones(2), name="pre", prescale_factor=scale))
    mismatch("postscale", action=lambda: hvd.allreduce(torch.ones(2), name="post", postscale_factor=scale))


def check_root_differs():
    mismatch("broadcast.root", "root", action=lambda: hvd.broadcast(torch.ones(2), hvd.rank() % 2, name="root"))


def check_numpy_arrays_give_the_same_errors():
    array = np.ones(3, "float32" if farandole.rank() == 0 else "int64")
    error = fails(
        farandole.MismatchError, "allreduce.plain", "int64", action=lambda: farandole.allreduce(array, name="plain")
    )
    assert not isinstance(error, hvd.HorovodInternalError) and error.code == "MISMATCH"
    assert "allreduce" in error.operation or error.operation == ""


def check_errors_can_be_pickled():
    error = hvd.HorovodInternalError
    one = farandole.errors.as_horovod(
        farandole.PeerLostError("rank 3 is gone", 3, "host-a", "allreduce 'x'", "ring", "all")
    )
    two = pickle.loads(pickle.dumps(one))
    assert isinstance(two, error) and isinstance(two, farandole.PeerLostError)
    assert two.fields() == one.fields() and (two.culprit_rank, two.culprit_host) == (3, "host-a")
    import builtins

    assert issubclass(farandole.TimeoutError, builtins.TimeoutError)
    assert issubclass(farandole.InvalidArgumentError, ValueError)
    for kind in farandole.errors.CLASSES.values():
        assert issubclass(kind, farandole.Error) and str(kind("text")) == "text"


def check_a_wait_that_times_out_leaves_the_operation():
    if farandole.rank() == 0:
        handle = farandole.allreduce_async(np.ones(2), name="late")
        begin = time.monotonic()
        fails(farandole.TimeoutError, action=lambda: handle.wait(timeout=0.2))
        assert 0.15 < time.monotonic() - begin < 10
        farandole.barrier()
    else:
        farandole.barrier()
        handle = farandole.allreduce_async(np.ones(2), name="late")
    assert handle.wait()[0] == farandole.size()


def check_an_operation_without_a_handle_completes():
    """The tensors of a dropped handle live until the operation is done."""
    for i in range(20):
        farandole.allreduce_async(np.full(1000, float(i)), name=f"dropped.{i}")
    assert farandole.allreduce(np.array([1]))[0] == farandole.size()


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 3])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)


# ---- Ranks that go: as Horovod's programs see it (test_failures.py has the rest)
# -----------------------------------------


def one_rank_dies():
    hvd.init()
    if hvd.rank() == 1:
        hvd.barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    def goes_on():  # rank 1 may exit before the others have left the barrier
        hvd.barrier()
        hvd.allreduce(torch.ones(4), name="orphan")

    error = fails(hvd.HorovodInternalError, "rank 1", action=goes_on)
    assert isinstance(error, farandole.PeerLostError) and error.culprit_rank == 1, (type(error), error.fields())
    # Later calls fail too, at once, with the same class.
    fails(hvd.HorovodInternalError, "rank 1", action=lambda: hvd.allreduce(torch.ones(4), name="after"))


def test_a_rank_that_dies_is_named():
    launch(3, one_rank_dies, codes=[0, -signal.SIGKILL, 0])


def one_rank_shuts_down():
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(torch.ones(4), name="never")
        hvd.shutdown()
        fails(hvd.HorovodInternalError, "shut", action=lambda: hvd.synchronize(handle))
    else:
        fails(hvd.HorovodInternalError, "shut", action=lambda: hvd.allreduce(torch.ones(4), name="late"))


def test_operations_fail_after_another_rank_shuts_down():
    launch(2, one_rank_shuts_down)


def bad_start():
    error = fails(ValueError, "initialization failed", "lots", action=hvd.init)
    assert isinstance(error, farandole.InvalidArgumentError)


def test_a_failed_init_is_a_value_error():
    launch(1, bad_start, {"FARANDOLE_FUSION_BYTES": "lots"})
