"""Small helpers that programs import from here."""

import contextlib
import importlib.util
import os

from farandole.basics import (  # noqa: F401
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)

_FRAMEWORKS = {"tensorflow": False, "torch": True, "mxnet": False, "keras": True}  # whether this package has a layer


def extension_available(ext_base_name, verbose=False):
    """Whether horovod.<ext_base_name> can be used: the layer is offered and its framework is installed."""
    available = _FRAMEWORKS.get(ext_base_name, False) and importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"horovod.{ext_base_name}: {'available' if available else 'not available'}")
    return available


def gpu_available(ext_base_name, verbose=False):
    """Whether the layer can be used and its framework finds a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    import torch

    return torch.cuda.is_available()


def check_extension(ext_name, ext_env_var, pkg_path, *args):
    """ImportError if the layer that `ext_name` ("horovod.torch") names cannot be used."""
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(f"{ext_name} is not available: it is not offered, or its framework is not installed")


@contextlib.contextmanager
def env(**kwargs):
    """A context with these environment variables; None removes one. Afterwards they are as they were."""
    before = {name: os.environ.get(name) for name in kwargs}

    def put(values):
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(kwargs)
    try:
        yield
    finally:
        put(before)


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
