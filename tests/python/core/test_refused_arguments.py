"""Invalid arguments: one sentence names the argument, its value and a valid one, before anything is submitted."""

import farandole as fdl
import farandole.torch as hvd
import numpy as np
import pytest
import torch
from expect import raises
from launch import launch

RANKS = 2


@pytest.fixture(scope="module", autouse=True)
def world():
    """The checks are the same on any number of ranks; a job of one needs no other process."""
    hvd.init()
    yield
    hvd.shutdown()


# ---- Objects without memory ------------------------------------------------------------------------------------------

CALLS = {
    **{name: getattr(hvd, name) for name in (
        "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "allgather", "allgather_async", "alltoall",
        "alltoall_async", "reducescatter", "reducescatter_async")},
    **{name: lambda thing, name=name: getattr(hvd, name)(thing, 0)
       for name in ("broadcast", "broadcast_", "broadcast_async", "broadcast_async_")},
    **{name: lambda thing, name=name: getattr(hvd, name)([thing, thing]) for name in (
        "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_",
        "grouped_allgather", "grouped_allgather_async", "grouped_reducescatter", "grouped_reducescatter_async")},
    "allreduce, compressed": lambda thing: hvd.allreduce(thing, compression=hvd.Compression.fp16),
    "reducescatter, compressed": lambda thing: hvd.reducescatter(thing, compression=hvd.Compression.fp16),
    "sparse_allreduce_async": lambda thing: hvd.sparse_allreduce_async(thing, "sparse", hvd.Sum),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "thing, name", [(np.ones(4), "numpy.ndarray"), ([1.0, 2.0], "list"), (3.0, "float"), (None, "NoneType")]
)
def test_arrays_and_lists_are_rejected(call, thing, name):
    raises(
        fdl.InvalidArgumentError,
        f"tensor is a {name}, and .* takes torch.Tensor; convert it with torch.as_tensor",
        call,
        thing,
    )


@pytest.mark.parametrize(
    "call", [*CALLS.values(), lambda one: hvd.broadcast_parameters({"w": one}, 0)], ids=[*CALLS, "parameters"]
)
def test_a_meta_tensor_is_rejected(call):
    raises(fdl.InvalidArgumentError, "tensor is a meta tensor, .* no data", call, torch.ones(4, device="meta"))


@pytest.fixture(scope="module")
def dtensor():
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Replicate()])
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "call", [*CALLS.values(), lambda one: hvd.broadcast_parameters({"w": one}, 0)], ids=[*CALLS, "parameters"]
)
def test_a_dtensor_is_rejected_with_advice(dtensor, call):
    raises(fdl.InvalidArgumentError, r"tensor is a DTensor, .*; give that part, tensor.to_local\(\)", call, dtensor)
    parameter = torch.nn.Parameter(dtensor)
    raises(fdl.InvalidArgumentError, r"tensor is a DTensor", call, parameter)
    assert hvd.allreduce(dtensor.to_local(), op=hvd.Sum).tolist() == [hvd.size()] * 4


def test_broadcast_parameters_names_the_rejected_value():
    parameters = {"bad": torch.ones(4, device="meta"), "good": torch.ones(1)}
    raises(
        fdl.InvalidArgumentError, "broadcast_parameters: bad: tensor is a meta", hvd.broadcast_parameters, parameters, 0
    )
    raises(
        ValueError,
        "bad: broadcast_parameters takes tensors, not ndarray",
        hvd.broadcast_parameters,
        {"bad": np.ones(1)},
        0,
    )


def test_sparse_allreduce_rejects_dense_tensors():
    raises(fdl.InvalidArgumentError, "tensor is not sparse", hvd.sparse_allreduce_async, torch.ones(2), "s", hvd.Sum)


# ---- Operators -------------------------------------------------------------------------------------------------------

REDUCTIONS = ["allreduce", "allreduce_async", "grouped_allreduce", "reducescatter", "grouped_reducescatter"]


@pytest.mark.parametrize(
    "name", [*REDUCTIONS, "allreduce_", "allreduce_async_", "grouped_allreduce_", "reducescatter_async"]
)
@pytest.mark.parametrize("op", ["sum", "Average", 17, 1.5, [1]])
def test_an_unknown_reduction_is_rejected(name, op):
    tensors = [torch.ones(2)] if name.startswith("grouped") else torch.ones(2)
    raises(
        fdl.InvalidArgumentError,
        r"op=.* is not a reduction; give Average, Sum, .*op=hvd.Sum",
        getattr(hvd, name),
        tensors,
        op=op,
    )


@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_operator_of_the_core_is_rejected_as_reduction(name):
    """Their numbers differ: farandole.SUM is the number of hvd.Average."""
    tensors = [torch.ones(2)] if name.startswith("grouped") else torch.ones(2)
    raises(
        fdl.InvalidArgumentError,
        "op=farandole.SUM is an operator of .*op=hvd.Sum",
        getattr(hvd, name),
        tensors,
        op=fdl.SUM,
    )


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("op", ["median", None, 17])
def test_an_unknown_operator_is_rejected(name, op):
    arrays = [np.ones(2)] if name.startswith("grouped") else np.ones(2)
    raises(
        fdl.InvalidArgumentError,
        "op=.* is not an operator; give one of .*op=farandole.SUM",
        getattr(fdl, name),
        arrays,
        op=op,
    )


# ---- Empty lists and groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["grouped_allreduce", "grouped_allreduce_", "grouped_allgather", "grouped_reducescatter"]
)
def test_empty_lists_give_empty_results(name):
    assert getattr(hvd, name)([]) == []


@pytest.mark.parametrize("name", ["grouped_allreduce", "grouped_allgather", "grouped_reducescatter"])
def test_empty_lists_cannot_be_submitted(name):
    text = f"{name}.*: the list of tensors is empty; give at least one"
    for function in (getattr(hvd, name + "_async"), getattr(fdl, name), getattr(fdl, name + "_async")):
        raises(fdl.InvalidArgumentError, text, function, [])
    raises(fdl.InvalidArgumentError, "is empty", hvd.grouped_allreduce_async_, [])


def test_an_empty_group_is_rejected():
    raises(fdl.InvalidArgumentError, "at least one rank, and `ranks` is empty; give some of 0..0", fdl.Group, [])
    raises(ValueError, "ranks_or_comm is empty; give at least one rank", hvd.ProcessSet, [])
    raises(ValueError, "is empty; give at least one rank", hvd.add_process_set, [])
    assert hvd.global_process_set.ranks == [0]


def test_negative_splits_are_rejected():
    raises(
        fdl.InvalidArgumentError,
        r"alltoall: splits\[0\] is -1; it must not be negative",
        fdl.alltoall,
        np.ones(2),
        [-1],
    )
    raises(fdl.InvalidArgumentError, r"splits \[-1\] has a negative entry", hvd.alltoall, torch.ones(2), [-1])


# ---- A refused call changes nothing-----------------------------------------------------------------------------------


def check_rejected_calls_are_not_counted():
    """All ranks count their unnamed operations equally. A call that fails on one rank only must not be counted."""
    hvd.init()
    if hvd.rank() == 1:
        bad = [np.ones(2), torch.ones(2, device="meta"), torch.ones(())]
        for thing in bad[:2]:
            for call in CALLS.values():
                with pytest.raises(ValueError):
                    call(thing)
        for name in ("allgather_async", "reducescatter_async", "alltoall_async"):
            with pytest.raises((ValueError, hvd.HorovodInternalError)):
                getattr(hvd, name)(bad[2])
        for name in ("allreduce_async", "reducescatter_async"):
            with pytest.raises(ValueError):
                getattr(hvd, name)(torch.ones(2), op="sum")
            with pytest.raises(ValueError):
                getattr(fdl, name)(np.ones(2), op="median")
        with pytest.raises(ValueError):
            fdl.alltoall_async(np.ones(2), [1, -1])
        with pytest.raises(ValueError):
            fdl.grouped_allreduce_async([])
        with pytest.raises(ValueError):
            hvd.broadcast_parameters([("a", torch.ones(1)), ("b", torch.ones(1, device="meta"))], 0)
    one = torch.ones(2)
    handles = [hvd.allreduce_async(one, op=hvd.Sum), hvd.allgather_async(one), hvd.reducescatter_async(one, op=hvd.Sum),
               hvd.grouped_allreduce_async([one], op=hvd.Sum), hvd.broadcast_async(one, 0)]  # fmt: skip
    results = [hvd.synchronize(handle) for handle in handles]
    assert [one[0].tolist() if isinstance(one, list) else one.tolist() for one in results] == [
        [RANKS] * 2, [1] * 2 * RANKS, [RANKS], [RANKS] * 2, [1] * 2
    ]  # fmt: skip
    assert hvd.synchronize(hvd.alltoall_async(one))[0].tolist() == [1] * 2
    started = [fdl.allreduce_async(np.ones(2)), fdl.reducescatter_async(np.ones(2)), fdl.alltoall_async(np.ones(2)),
               fdl.grouped_allreduce_async([np.ones(2)])]  # fmt: skip
    assert started[0].wait().tolist() == [RANKS] * 2 and started[1].wait().tolist() == [RANKS]
    assert started[2].wait().tolist() == [1] * 2 and started[3].wait()[0].tolist() == [RANKS] * 2
    parameter = torch.full((2,), float(hvd.rank()))
    hvd.broadcast_parameters([("a", parameter), ("c", parameter.t())], 0)
    assert parameter.tolist() == [0, 0]


def test_rejected_calls_are_not_counted():
    launch(RANKS, check_rejected_calls_are_not_counted)


# ---- Numbers and names that do not fit -------------------------------------------------------------------------------

HUGE = 2**70


@pytest.mark.parametrize("call", [fdl, hvd], ids=["numpy", "torch"])
def test_numbers_and_names_that_do_not_fit_are_refused(call):
    tensor = np.ones(2, np.float32) if call is fdl else torch.ones(2)
    refused = fdl.InvalidArgumentError
    raises(refused, r"root.* 1180591620717411303424", call.broadcast, tensor, HUGE)
    raises(refused, r"splits .*1180591620717411303424", call.alltoall, tensor, [HUGE])
    raises(refused, r"the name '.*a\\ud800' of an operation cannot be encoded", call.allreduce, tensor, name="a\ud800")
    raises(refused, r"the name '.*a\\x00b' of an operation contains a NUL", call.allreduce, tensor, name="a\0b")


def test_numbers_that_do_not_fit_are_refused_by_communicators():
    communicator = fdl.Communicator()
    tensor = np.ones(2, np.float32)
    refused = fdl.InvalidArgumentError
    raises(refused, "root is 1180591620717411303424", communicator.broadcast, tensor, HUGE)
    raises(refused, "peer is 1180591620717411303424", communicator.send, tensor, HUGE)
    raises(refused, "timeout=1e\\+300: give seconds", communicator.allreduce, tensor, timeout=1e300)
    raises(refused, "timeout='1': give seconds", communicator.allreduce, tensor, timeout="1")
    raises(refused, "prescale is", communicator.allreduce, tensor, prescale="x")


def test_what_is_no_group_is_refused():
    refused = fdl.InvalidArgumentError
    tensor = np.ones(2, np.float32)
    raises(refused, r"group=\[0\]: give a farandole.Group, or None", fdl.allreduce, tensor, group=[0])
    raises(refused, r"group=\[\]: give a farandole.Group, or None", fdl.Communicator, [])
    raises(refused, "a group needs different ranks of 0..0", fdl.Group, np.broadcast_to(1, 2**45))
    raises(refused, "shrink: timeout is '1'; give seconds", fdl.shrink, "1")


TOO_LARGE = (2**31, 2**40, HUGE, -HUGE)


@pytest.mark.parametrize("number", TOO_LARGE)
def test_numbers_of_groups_and_memory_that_do_not_fit_are_refused(number):
    refused = fdl.InvalidArgumentError
    raises(refused, f"color is {number}; give a number of ", fdl.world_group().split, number)
    raises(refused, f"key is {number}; give a number of ", fdl.world_group().split, 0, number)
    raises(refused, f"ranks is {number}; give a number of ", fdl.explain, "allreduce", number, 1)
    raises(refused, "nbytes is -8; give a number of ", fdl.memory.allocate, -8)
    raises(refused, "nbytes is 4722366482869645213696; give a number of ", fdl.empty, 2**69, "float64")
    raises(refused, "timeout is 1e\\+300; give seconds", fdl.shrink, 1e300)


def test_a_dtype_that_numpy_lacks_is_refused():
    for dtype in ("no such dtype", 3):
        raises(fdl.InvalidArgumentError, f"dtype={dtype!r} is none of NumPy's", fdl.empty, 3, dtype)


TEXTS = {"a\ud800": "cannot be encoded as UTF-8", "a\0b": "contains a NUL character"}


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_c_cannot_hold_are_refused(text, tmp_path):
    refused, why = fdl.InvalidArgumentError, TEXTS[text]
    raises(refused, f"file_path .*{why}", fdl.start_timeline, f"{tmp_path}/{text}")
    raises(refused, f"collective .*{why}", fdl.explain, text, 2, 1)
    raises(refused, f"algorithm .*{why}", fdl.Communicator().allreduce, np.ones(2), algorithm=text)
    raises(refused, f"dtype .*{why}", fdl.empty, 3, text)
    raises(refused, "dtype=.* is not a torch.dtype", hvd.empty, 3, dtype=text)
    for call in (fdl.allreduce, fdl.allgather, fdl.broadcast, fdl.alltoall, fdl.reducescatter):
        raises(refused, f"name .*{why}", call, np.ones(2), name=text)
        raises(refused, f"name .*{why}", getattr(hvd, call.__name__), torch.ones(2), *[0] * (call is fdl.broadcast),
               name=text)  # fmt: skip
    raises(refused, f"name .*{why}", fdl.barrier, name=text)
    raises(refused, f"name .*{why}", hvd.broadcast_object, 1, 0, text)
    raises(refused, f"name .*{why}", hvd.allgather_object, 1, text)
    raises(refused, "op=.* is not an operator", fdl.allreduce, np.ones(2), text)
    raises(refused, "compression=.* is not a compression", fdl.allreduce, np.ones(2), compression=text)
    communicator = fdl.Communicator()
    communicator.abort(text)
    with pytest.raises(fdl.AbortedError) as ended:
        communicator.barrier()
    assert {"a\ud800": "a\\ud800", "a\0b": "a\\0b"}[text] in str(ended.value)


def check_arguments_of_init_that_do_not_fit_are_refused():
    for text, why in TEXTS.items():
        for name in ("rendezvous", "job_key", "transport"):
            error = raises(fdl.InvalidArgumentError, f"{name} .*{why}", fdl.init, **{name: f"secret{text}"})
            assert name != "job_key" or "secret" not in str(error)
    raises(fdl.InvalidArgumentError, "job_key has the type int; give text", fdl.init, job_key=12345)
    raises(fdl.InvalidArgumentError, "job_key .* contains a NUL", fdl.init, job_key=b"secret\0secret")
    for number in TOO_LARGE:
        for name in ("rank", "size", "local_rank", "local_size"):
            raises(fdl.InvalidArgumentError, f"{name} is {number}; give a number of ", fdl.init, **{name: number})


def test_arguments_of_init_that_do_not_fit_are_refused():
    launch(1, check_arguments_of_init_that_do_not_fit_are_refused)
