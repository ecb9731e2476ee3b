"""Sizes of a caller's arrays: wrong ones are rejected with both numbers, and nothing is sent, written or counted.

The random caller also runs under AddressSanitizer: tests/run.sh, part address."""

import sys
from functools import partial

import farandole as fdl
import numpy as np
import pytest
from expect import fails
from launch import Launched, checks_of, free_port, require
from limits import allowed


def check_init():
    fdl.init()


def check_ordered_calls_name_both_numbers():
    size, me = fdl.size(), f"(rank {fdl.rank()})"
    with fdl.Communicator() as comm:

        def refused(*parts, action):
            fails(fdl.InvalidArgumentError, *parts, me, action=action)

        refused("allgather: output has 10 elements", f"needs {size * 1_000_000};",
                action=lambda: comm.allgather(np.ones(1_000_000), out=np.ones(10)))  # fmt: skip
        refused("reduce_scatter: input has 7 elements", f"needs {3 * size};",
                action=lambda: comm.reduce_scatter(np.ones(7), counts=[3] * size))  # fmt: skip
        refused("alltoall: output has 1 element,", f"needs {4 * size};",
                action=lambda: comm.alltoall(np.ones(4 * size), out=np.ones(1)))  # fmt: skip
        refused("allgather: input has 4 elements", "needs 2;",
                action=lambda: comm.allgather(np.ones(4), counts=[2] * size))  # fmt: skip
        if fdl.rank() == 0:
            refused("gather: output has 3 elements", f"needs {5 * size};",
                    action=lambda: comm.gather(np.ones(5), out=np.ones(3)))  # fmt: skip
            refused("reduce: output has 3 elements", "needs 5;", action=lambda: comm.reduce(np.ones(5), out=np.ones(3)))
            refused("scatter: input has 3 elements", f"needs {5 * size};",
                    action=lambda: comm.scatter(np.ones(3), np.ones(5)))  # fmt: skip
        assert comm.allreduce(np.ones(1))[0] == size


def check_counts_with_a_wrong_length_or_sign():
    size = fdl.size()
    with fdl.Communicator() as comm:
        for counts in ([], [1] * (size - 1), [1] * (size + 1)):
            text = f"counts has {len(counts)} entries, and there are {size} ranks"
            for action in (partial(comm.allgather, np.ones(1)), partial(comm.reduce_scatter, np.ones(size))):
                fails(fdl.InvalidArgumentError, text, action=partial(action, counts=counts))
            exchange = partial(comm.alltoall, np.ones(size), send_counts=counts, recv_counts=[1] * size)
            fails(fdl.InvalidArgumentError, f"send_{text}", action=exchange)
        counts = [1] * (size - 1) + [-4]
        text = f"counts[{size - 1}] is -4; it must not be negative"
        fails(fdl.InvalidArgumentError, f"allgather: {text}", action=lambda: comm.allgather(np.ones(1), counts=counts))
        fails(fdl.InvalidArgumentError, f"alltoall: recv_{text}",
              action=lambda: comm.alltoall(np.ones(size), send_counts=[1] * size, recv_counts=counts))  # fmt: skip
        fails(fdl.InvalidArgumentError, "counts must be a sequence of integers",
              action=lambda: comm.allgather(np.ones(1), counts="11"))  # fmt: skip
        fails(TypeError, "integer", action=lambda: comm.allgather(np.ones(1), counts=[1.5] * size))
        fails(fdl.InvalidArgumentError, "alltoall: splits has 1 entries", action=lambda: fdl.alltoall(np.ones(4), [4]))
        assert comm.allreduce(np.ones(1))[0] == size


def check_overlapping_arrays():
    memory = np.zeros(9)
    with fdl.Communicator() as comm:
        fails(fdl.InvalidArgumentError, "share 56 bytes; pass separate arrays",
              action=lambda: comm.allreduce(memory[:8], out=memory[1:]))  # fmt: skip
        fails(fdl.InvalidArgumentError, "share 56 bytes; pass separate arrays",
              action=lambda: fdl.allreduce(memory[:8], out=memory[1:]))  # fmt: skip
        memory[:] = 1
        assert (comm.allreduce(memory[:8], out=memory[:8]) == fdl.size()).all() and memory[8] == 1


def check_rejected_operations_do_not_use_up_a_number():
    """Unnamed operations are counted. A rejected call of one rank must not shift its later names."""
    for _ in range(3 * fdl.rank()):
        fails(fdl.InvalidArgumentError, "splits has", action=lambda: fdl.alltoall(np.ones(4), [4]))
        fails(fdl.InvalidArgumentError, "splits add up to", action=lambda: fdl.alltoall(np.ones(1), [9] * fdl.size()))
        fails(fdl.InvalidArgumentError, "out has 1 arrays for 2 tensors",
              action=lambda: fdl.grouped_allreduce([np.ones(2)] * 2, out=[np.ones(2)]))  # fmt: skip
        fails(fdl.Error, "they must be the same", action=lambda: fdl.allreduce_async(np.ones(2), out=np.ones(3)))
    assert (fdl.alltoall(np.full(fdl.size(), fdl.rank())) == np.arange(fdl.size())).all()
    assert (fdl.allreduce_async(np.ones(2)).wait(20) == fdl.size()).all()
    assert (fdl.grouped_allreduce([np.ones(2)] * 2)[1] == fdl.size()).all()


def check_shutdown():
    fdl.shutdown()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_on_ranks(check, size):
    require(sys.modules[__name__], size, check)


def random_caller(size, seed, calls):
    """(correct calls, rejected calls) of each rank."""
    environment = {
        "RANDOM_SIZES_PORT": str(free_port()),
        "RANDOM_SIZES_SEED": str(seed),
        "RANDOM_SIZES_CALLS": str(calls),
    }
    with Launched(size, "random_sizes", ["check_random_calls"], environment) as job:
        job.wait(allowed(300))
        assert [rank.code for rank in job.ranks] == [0] * size, job.report()
        return [tuple(map(int, rank.output.split()[-2:])) for rank in job.ranks]


@pytest.mark.parametrize("size,seed", [(2, 1), (3, 2), (4, 3)])
def test_random_caller(size, seed):
    for made, refusals in random_caller(size, seed, 300):
        assert made > 300 and refusals > 300
