"""Errors of programs written for Horovod: one row for each situation, equal on every rank.

`python tests/python/error_table.py` prints the texts.
"""

import sys

import farandole
import horovod.torch as hvd
import pytest
import torch
from launch import checks_of, require


def rank():
    return hvd.rank()


def by_rank(first, others):
    """The first value on rank 0, the second on all others."""
    return first if rank() == 0 else others


def ones(*shape, **options):
    return torch.ones(*shape, **options)


INTERNAL = hvd.HorovodInternalError

# (situation, class, words of the text, the function that every rank calls). `words` fills in words in {}.
BEFORE_INIT = [
    ("rank() before init", ValueError, ["has not been initialized; use hvd.init()"], lambda: hvd.rank()),
    ("size() before init", ValueError, ["has not been initialized; use hvd.init()"], lambda: hvd.size()),
    ("start_timeline before init", ValueError, ["has not been initialized"], lambda: hvd.start_timeline("x")),
    (
        "mpi_threads_supported before init",
        ValueError,
        ["has not been initialized"],
        lambda: hvd.mpi_threads_supported(),
    ),
    (
        "a collective before init",
        INTERNAL,
        ["has not been initialized; use hvd.init()"],
        lambda: hvd.allreduce(ones(1)),
    ),
    ("barrier before init", INTERNAL, ["has not been initialized; use hvd.init()"], lambda: hvd.barrier()),
    ("a set before init", INTERNAL, ["has not been initialized"], lambda: hvd.add_process_set([0])),
]

# Ranks disagree: the call has no effect, all ranks raise, with the tensor and two ranks, and the job continues.
DISAGREEMENTS = [
    (
        "types differ",
        ["allreduce.a", "float32", "int32"],
        lambda: hvd.allreduce(ones(3, dtype=by_rank(torch.float32, torch.int32)), name="a"),
    ),
    (
        "kinds differ",
        ["same", "allreduce", "allgather"],
        lambda: by_rank(
            lambda: hvd.synchronize(_submit("ALLREDUCE", "same")), lambda: hvd.synchronize(_submit("ALLGATHER", "same"))
        )(),
    ),
    (
        "shapes differ: allreduce",
        ["allreduce.b", "[17, 2]", "[18, 2]"],
        lambda: hvd.allreduce(ones(by_rank(17, 18), 2), name="b"),
    ),
    (
        "shapes differ: adasum",
        ["allreduce.c", "[17]", "[18]"],
        lambda: hvd.allreduce(ones(by_rank(17, 18)), name="c", op=hvd.Adasum),
    ),
    (
        "shapes differ: broadcast",
        ["broadcast.d", "[17]", "[18]"],
        lambda: hvd.broadcast(ones(by_rank(17, 18)), 0, name="d"),
    ),
    (
        "shapes differ: reducescatter",
        ["reducescatter.e", "[17]", "[18]"],
        lambda: hvd.reducescatter(ones(by_rank(17, 18)), name="e"),
    ),
    (
        "dimensions differ: allgather",
        ["allgather.f", "[2]", "[2, 1]"],
        lambda: hvd.allgather(ones(*by_rank((2,), (2, 1))), name="f"),
    ),
    (
        "rows differ in size: allgather",
        ["allgather.g", "[2, 3]", "[2, 4]"],
        lambda: hvd.allgather(ones(2, by_rank(3, 4)), name="g"),
    ),
    (
        "rows differ in size: alltoall",
        ["alltoall.h", "3]", "4]"],
        lambda: hvd.alltoall(ones(hvd.size(), by_rank(3, 4)), name="h"),
    ),
    (
        "prescale differs",
        ["allreduce.i", "prescale", "0.5"],
        lambda: hvd.allreduce(ones(2), name="i", prescale_factor=by_rank(1.0, 0.5)),
    ),
    (
        "postscale differs",
        ["allreduce.j", "postscale", "0.5"],
        lambda: hvd.allreduce(ones(2), name="j", postscale_factor=by_rank(1.0, 0.5)),
    ),
    (
        "sum and average: reducescatter",
        ["reducescatter.k", "sum", "average"],
        lambda: hvd.reducescatter(ones(4), name="k", op=by_rank(hvd.Sum, hvd.Average)),
    ),
    (
        "reductions differ",
        ["allreduce.l", "min", "max"],
        lambda: hvd.allreduce(ones(2), name="l", op=by_rank(hvd.Min, hvd.Max)),
    ),
    (
        "reductions differ: adasum",
        ["allreduce.m", "sum", "adasum"],
        lambda: hvd.allreduce(ones(2), name="m", op=by_rank(hvd.Sum, hvd.Adasum)),
    ),
    ("roots differ", ["broadcast.n", "root 0", "root 1"], lambda: hvd.broadcast(ones(2), by_rank(0, 1), name="n")),
    (
        "a member of a group differs",
        ["grouped_allreduce.o_2of2", "[3]", "[4]"],
        lambda: hvd.grouped_allreduce([ones(2), ones(by_rank(3, 4))], name="o"),
    ),
]

# Invalid arguments: raised at once, without waiting.
FAULTS = [
    ("no rows: allgather", INTERNAL, ["dimension"], lambda: hvd.allgather(torch.tensor(1.0))),
    ("no rows: alltoall", INTERNAL, ["dimension"], lambda: hvd.alltoall(torch.tensor(1.0))),
    (
        "no rows: reducescatter",
        ValueError,
        ["does not support scalar inputs"],
        lambda: hvd.reducescatter(torch.tensor(1.0)),
    ),
    *[
        (
            f"reducescatter with {name}",
            INTERNAL,
            ["AVERAGE and SUM"],
            lambda name=name: hvd.reducescatter(ones(4), op=getattr(hvd, name)),
        )
        for name in ("Min", "Max", "Product", "Adasum")
    ],
    ("a root that is no rank", ValueError, ["invalid root rank 99"], lambda: hvd.broadcast(ones(1), 99)),
    ("a root that is no number of a rank", ValueError, ["invalid root rank -1"], lambda: hvd.broadcast(ones(1), -1)),
    (
        "a set that is not registered",
        ValueError,
        ["has not been registered"],
        lambda: hvd.allreduce(ones(1), process_set=hvd.ProcessSet([0])),
    ),
    (
        "splits of another type",
        ValueError,
        ["32-bit integer"],
        lambda: hvd.alltoall(ones(8), torch.ones(hvd.size(), dtype=torch.int64)),
    ),
    (
        "splits beyond the rows",
        ValueError,
        ["greater than the first dimension"],
        lambda: hvd.alltoall(ones(8), [9] * hvd.size()),
    ),
    ("splits too many", ValueError, ["number of workers"], lambda: hvd.alltoall(ones(8), [1] * (hvd.size() + 1))),
    ("rows that do not divide", ValueError, ["splits not provided"], lambda: hvd.alltoall(ones(2 * hvd.size() + 1))),
    (
        "a group on two devices",
        INTERNAL,
        ["must be on same device"],
        lambda: hvd.grouped_allreduce([ones(2), ones(2, device="meta")]),
    ),
    (
        "a type without rule",
        ValueError,
        ["ComplexFloat", "is not supported"],
        lambda: hvd.allreduce(ones(2, dtype=torch.complex64)),
    ),
    (
        "a sum of truth values as average",
        ValueError,
        ["average", "bool"],
        lambda: hvd.allreduce(ones(2, dtype=torch.bool)),
    ),
    ("not contiguous", ValueError, ["required to be contiguous"], lambda: hvd.allreduce(ones(4, 4).t())),
    ("both average and op", ValueError, ["supersedes"], lambda: hvd.allreduce(ones(2), average=True, op=hvd.Sum)),
    ("no reduction", ValueError, ["99"], lambda: hvd.allreduce(ones(2), op=99)),
    ("a handle that is none", ValueError, ["12345678"], lambda: hvd.poll(12345678)),
    (
        "a second set of the same ranks",
        ValueError,
        ["duplicate process set"],
        lambda: hvd.add_process_set(range(hvd.size())),
    ),
    ("a set with foreign ranks", ValueError, ["different ranks of 0.."], lambda: hvd.add_process_set([0, 99])),
    ("a set of words", ValueError, ["integers"], lambda: hvd.ProcessSet(["a"])),
    ("parameters of no kind", ValueError, ["invalid params of type"], lambda: hvd.broadcast_parameters(3, 0)),
    ("MPI's threads without MPI", ValueError, ["MPI is not enabled"], lambda: hvd.mpi_threads_supported()),
]


def _submit(kind, name):
    """Two kinds under one name, which the public functions cannot produce because names contain the kind."""
    from farandole import core
    from farandole.torch import ops

    tensor = ones(2)
    target = torch.empty(2) if kind == "ALLREDUCE" else None
    fields = ops._operation(core.Kind[kind], name, None, tensor, target)
    return ops._enqueue(hvd.global_process_set.group("test"), [fields], None, (tensor, target), lambda native: None)


def expect_error(situation, kind, words, action):
    with pytest.raises(kind) as caught:
        action()
    text = str(caught.value)
    print("ROW", situation, kind.__name__, text, sep="\t", flush=True)
    for word in words:
        assert word in text, f"{situation}: {word!r} is not in {text!r}"
    return caught.value


def alive():
    assert torch.equal(hvd.allreduce(ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))


def check_before_init():
    for row in BEFORE_INIT:
        expect_error(*row)
    hvd.init()


def check_disagreements():
    for situation, words, action in DISAGREEMENTS:
        error = expect_error(situation, INTERNAL, [*words, "rank 0", "rank 1"], action)
        assert isinstance(error, farandole.MismatchError)
        assert hvd.allgather_object(str(error)) == [str(error)] * hvd.size(), "all ranks raise the same text"
        alive()


def check_faults():
    for row in FAULTS:
        expect_error(*row)
    alive()


def check_a_name_in_flight():
    if rank() == 0:
        first = hvd.allreduce_async(ones(3), name="twice", op=hvd.Sum)
        expect_error("a name that is in flight", ValueError, ["allreduce.twice", "in flight"],
             lambda: hvd.allreduce_async(ones(3), name="twice", op=hvd.Sum))  # fmt: skip
        expect_error("a group with a name that is in flight", ValueError, ["in flight"],
             lambda: hvd.grouped_allreduce_async([ones(1), ones(1)], name="pair") and
             hvd.grouped_allreduce_async([ones(1), ones(1)], name="pair"))  # fmt: skip
        hvd.barrier()
    else:
        hvd.barrier()
        first = hvd.allreduce_async(ones(3), name="twice", op=hvd.Sum)
        hvd.grouped_allreduce_async([ones(1), ones(1)], name="pair")
    assert torch.equal(hvd.synchronize(first), torch.full((3,), float(hvd.size())))
    alive()


def check_ranks_outside_a_set():
    members = hvd.add_process_set([0])
    if members.included():
        assert hvd.allreduce(ones(1), process_set=members).item() == 1.0
        expect_error("a root outside the set", ValueError, ["invalid root rank 1"],
             lambda: hvd.broadcast(ones(1), 1, process_set=members))  # fmt: skip
    else:
        expect_error("an operation of a set one is not in", ValueError, [f"Rank {rank()} is not a member"],
             lambda: hvd.allreduce(ones(1), process_set=members))  # fmt: skip
        expect_error("one's rank in such a set", ValueError, ["not part of provided process set"], members.rank)
    hvd.remove_process_set(members)


def check_sets_that_differ():
    error = expect_error("sets that differ", ValueError, ["same sets in one order"],
                 lambda: hvd.add_process_set(by_rank([0], [1])))  # fmt: skip
    assert isinstance(error, farandole.MismatchError)
    alive()


def check_operations_that_fail_after_join():
    if rank() == 0:
        hvd.barrier()
        for name, action in (
            ("allgather", lambda: hvd.allgather(ones(2), name="joined")),
            ("broadcast", lambda: hvd.broadcast(ones(2), 0, name="joined")),
            ("alltoall", lambda: hvd.alltoall(ones(hvd.size()), name="joined")),
            ("reducescatter", lambda: hvd.reducescatter(ones(4), name="joined")),
        ):
            expect_error(f"{name} while others have joined", INTERNAL, [f"{name}.joined", "join"], action)
        assert torch.equal(hvd.allreduce(ones(2), op=hvd.Sum), ones(2))
    else:
        hvd.barrier()
    assert 0 <= hvd.join() < hvd.size()
    alive()


@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
@pytest.mark.parametrize("size", [2, 4])
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)


def test_the_table_has_every_row_of_the_contract():
    import error_table

    for row, situation, kind, text in error_table.table():
        assert kind and len(text) > 20 and "\n" not in text, (row, situation, text)
        print(f"{row}: {situation}: {kind}: {text}")
