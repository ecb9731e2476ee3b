"""Arguments of a Communicator: misspelt keywords, counts and operators are rejected before anything is sent."""

import inspect

import farandole as fdl
import numpy as np
import pytest
from expect import raises
from farandole.codes import number_of
from launch import launch

RANKS = 2
REDUCING = ("allreduce", "reduce", "reduce_scatter")
MOVING = ("broadcast", "allgather", "alltoall", "gather", "scatter")
ALL = (*REDUCING, *MOVING, "barrier")


def call(comm, name, **options):
    """A collective of 4 elements with valid arguments and these options."""
    positional = {"barrier": (), "scatter": (np.ones(4 * comm.size), np.empty(4))}.get(
        name.removeprefix("i"), (np.ones(4),)
    )
    return getattr(comm, name)(*positional, **options)


@pytest.fixture(scope="module")
def comm():
    """The checks are the same on any number of ranks; a job of one needs no other process."""
    fdl.init()
    with fdl.Communicator() as one:
        yield one
    fdl.shutdown()


@pytest.mark.parametrize("name", [*ALL, *("i" + name for name in ALL)])
def test_a_misspelt_keyword_is_named_with_the_known_ones(comm, name):
    error = raises(TypeError, f"Communicator.{name} has no keyword 'determinstic'", call, comm, name, determinstic=True)
    known = list(inspect.signature(getattr(comm, name)).parameters)
    assert str(error).endswith("its keywords are " + ", ".join(known)) and {"algorithm", "timeout"} <= set(known)
    assert ("deterministic" in known) == (name.removeprefix("i") in REDUCING)
    assert getattr(comm, name).__doc__ and getattr(comm, name).__name__ == name


@pytest.mark.parametrize("name", [*MOVING, "barrier"])
def test_collectives_without_a_reduction_reject_scales(comm, name):
    raises(TypeError, f"Communicator.{name} has no keyword 'prescale'", call, comm, name, prescale=2.0)


@pytest.mark.parametrize("name", ALL)
def test_keywords_reach_the_core(comm, name):
    options = dict(algorithm="auto", timeout=30)
    if name in REDUCING:
        options.update(prescale=2.0, postscale=3.0, deterministic=True)
    results = [call(comm, name, **options), call(comm, "i" + name, **options).wait()]
    if name in REDUCING:
        assert all((result == 6).all() for result in results)


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(timeout=-1), "timeout=-1: give seconds"),
        (dict(timeout=float("nan")), "timeout=nan: give seconds"),
        (dict(algorithm=3), "algorithm=3: give its name"),
        (dict(algorithm="no such thing"), "algorithm"),
        (dict(op="median"), "op='median' is not an operator; give one of farandole's: SUM, .*op=farandole.SUM"),
        (dict(op=99), "op=99 is not an operator"),
        (dict(op=None), "op=None is not an operator"),
    ],
)
def test_invalid_options_are_rejected(comm, options, text):
    raises(fdl.InvalidArgumentError, text, comm.allreduce, np.ones(4), **options)


@pytest.mark.parametrize(
    "name, counts, text",
    [
        ("allgather", dict(counts=[-1]), r"allgather: counts\[0\] is -1; it must not be negative"),
        ("allgather", dict(counts=[4, 4]), "allgather: counts has 2 entries, and there are 1 ranks"),
        ("reduce_scatter", dict(counts=[-1]), r"reduce_scatter: counts\[0\] is -1"),
        ("reduce_scatter", dict(counts=[]), "reduce_scatter: counts has 0 entries"),
        ("alltoall", dict(send_counts=[-4], recv_counts=[4]), r"alltoall: send_counts\[0\] is -4"),
        ("alltoall", dict(send_counts=[4], recv_counts=[-4]), r"alltoall: recv_counts\[0\] is -4"),
        ("alltoall", dict(send_counts=[4], recv_counts=[2, 2]), "alltoall: recv_counts has 2 entries"),
        ("alltoall", dict(send_counts=[4]), "give both send_counts and recv_counts"),
    ],
)
def test_invalid_counts_are_rejected(comm, name, counts, text):
    raises(fdl.InvalidArgumentError, text, call, comm, name, **counts)
    raises(fdl.InvalidArgumentError, text, call, comm, "i" + name, **counts)
    raises(TypeError, "integer", comm.allgather, np.ones(4), counts=[4.5])


def check_a_refused_call_leaves_the_communicator_in_order():
    """One rank errs and corrects its call; the calls of the others match the corrected one."""
    fdl.init()
    with fdl.Communicator() as comm:
        if fdl.rank() == 1:
            for options in (dict(determinstic=True), dict(op="median"), dict(timeout=-1)):
                with pytest.raises((TypeError, ValueError)):
                    comm.allreduce(np.ones(3), **options)
            with pytest.raises(ValueError):
                comm.allgather(np.ones(3), counts=[3, -3])
        assert comm.allreduce(np.ones(3)).tolist() == [RANKS] * 3
        counts = np.array([1, 2])  # NumPy's integers are valid counts
        assert comm.allgather(np.full(fdl.rank() + 1, fdl.rank()), counts=counts).tolist() == [0, 1, 1]


def test_a_refused_call_leaves_the_communicator_in_order():
    launch(RANKS, check_a_refused_call_leaves_the_communicator_in_order)


@pytest.mark.parametrize("name, op", [("sum", fdl.SUM), ("Mean", fdl.AVERAGE), ("max", fdl.MAX),
                                      ("prod", fdl.PRODUCT), ("bit_xor", fdl.Op.BIT_XOR)])  # fmt: skip
def test_an_operator_may_be_given_by_its_name(name, op):
    assert number_of(name) == int(op)


def test_an_unknown_name_of_an_operator_is_refused(comm):
    raises(
        fdl.InvalidArgumentError, "op='median' is not an operator; .*op=\"sum\"", call, comm, "allreduce", op="median"
    )


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3).T, np.asfortranarray(np.arange(6.0).reshape(2, 3)),
                                   np.arange(12.0)[::2]], ids=["transposed", "fortran", "strided"])  # fmt: skip
def test_inputs_that_are_not_row_major_are_copied(comm, array):
    assert (comm.allreduce(array) == array).all()
    assert (comm.allgather(array)[0] == array).all()
    assert (fdl.allreduce(array, name="copied") == array).all()
    raises(fdl.InvalidArgumentError, "row-major", comm.allreduce, array, out=array)
    raises(fdl.InvalidArgumentError, "row-major", comm.broadcast, array)  # in place


def test_complex_arrays_are_refused_with_a_way_out(comm):
    array = np.ones(3, dtype=np.complex64)
    raises(fdl.InvalidArgumentError, "complex numbers are not supported.*x.view", comm.allreduce, array)
    raises(fdl.InvalidArgumentError, "complex numbers are not supported", fdl.allreduce, array, name="complex")
    assert (comm.allreduce(array.view(np.float32)).view(np.complex64) == array).all()


def test_scatter_without_an_output_is_refused(comm):
    raises(
        fdl.InvalidArgumentError, "scatter: out is missing on rank 0; .*1/1 of the elements", comm.scatter, np.ones(3)
    )
