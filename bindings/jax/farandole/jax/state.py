"""Rank 0's parameters and objects on all ranks."""

import jax
import numpy

from .. import errors, objects
from ..basics import global_process_set
from . import direct
from .functions import broadcast


def _described(leaf):
    """(shape, type) of an array, or None for another object."""
    if isinstance(leaf, (jax.Array, numpy.ndarray)):
        return tuple(leaf.shape), str(leaf.dtype)
    return None


def _agree(leaves, name, process_set):
    """MismatchError on all ranks if one of them has other leaves than the first rank of the set."""
    mine = [(jax.tree_util.keystr(path), _described(leaf)) for path, leaf in leaves]
    of_rank = objects.allgather_object(mine, f"{name}.leaves", process_set.group("broadcast_variables"))
    for rank, others in zip(process_set.ranks, of_rank):
        for first, other in zip(of_rank[0], others):
            if first != other:
                raise errors.MismatchError(
                    f"{name}: rank {process_set.ranks[0]} has {_text(first)}, rank {rank} {_text(other)}; give all "
                    "ranks a tree of the same structure, shapes and types"
                )
        if len(others) != len(of_rank[0]):
            raise errors.MismatchError(
                f"{name}: rank {process_set.ranks[0]} has {len(of_rank[0])} leaves, rank {rank} {len(others)}; give "
                "all ranks a tree of the same structure"
            )


def _text(leaf):
    path, described = leaf
    return f"{path or 'a leaf'} as {'an object' if described is None else f'{described[1]}{list(described[0])}'}"


def broadcast_variables(variables, root_rank=0, process_set=global_process_set, name="broadcast_variables"):
    """Returns the pytree of rank `root_rank` (of the world) on all ranks of the set: parameters, or an optax state.

    Arrays travel as one unit; other leaves, such as numbers, are pickled. Collective over the set, outside of compiled
    functions. MismatchError on all ranks if the trees differ in structure, shapes or types.
    """
    with direct.horovod_errors():
        process_set.root(root_rank, "broadcast_variables")
        leaves, structure = jax.tree_util.tree_flatten_with_path(variables)
        _agree(leaves, name, process_set)
        values = [leaf for _, leaf in leaves]
        are_arrays = [_described(leaf) is not None for leaf in values]
        arrays = broadcast([leaf for leaf, is_array in zip(values, are_arrays) if is_array], root_rank, name,
                           process_set)  # fmt: skip
        others = [leaf for leaf, is_array in zip(values, are_arrays) if not is_array]
        if others:
            others = broadcast_object(others, root_rank, f"{name}.others", process_set)
    arrays, others = iter(arrays), iter(others)
    return structure.unflatten([next(arrays) if is_array else next(others) for is_array in are_arrays])


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """The object of rank `root_rank` (of the world) on every rank of the set. It is pickled, as by farandole.torch.

    InvalidArgumentError on all ranks if the root cannot pickle it.
    """
    group = process_set.group("broadcast_object")
    root = process_set.root(root_rank, "broadcast_object")
    with direct.horovod_errors(), group.blocking_name("broadcast_object", name) as name:
        return objects.broadcast_object(obj, root, name, group)


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks of the set, as a list in rank order. They are pickled."""
    group = process_set.group("allgather_object")
    with direct.horovod_errors(), group.blocking_name("allgather_object", name) as name:
        return objects.allgather_object(obj, name, group)
