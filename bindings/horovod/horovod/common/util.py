"""Small helpers that programs import from here."""

from farandole.basics import (  # noqa: F401
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)


def is_iterable(thing):
    try:
        iter(thing)
    except TypeError:
        return False
    return True


def num_rank_is_power_2(count):
    return count != 0 and count & (count - 1) == 0


def split_list(things, parts):
    """`parts` lists of neighbours whose lengths differ by one at most."""
    each, more = divmod(len(things), parts)
    starts = [part * each + min(part, more) for part in range(parts + 1)]
    return [things[start:end] for start, end in zip(starts, starts[1:])]
