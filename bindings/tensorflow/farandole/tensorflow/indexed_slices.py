"""Allreduce of tf.IndexedSlices: rows of a larger tensor, as the gradients of embeddings are."""

import tensorflow as tf

from ..basics import Average, Sum
from . import calls
from .library import ops


def check(op, prescale=1.0, postscale=1.0):
    """NotImplementedError unless the reduction is possible for IndexedSlices."""
    if op not in (Average, Sum):
        raise NotImplementedError("IndexedSlices can be reduced with op=Average and op=Sum only")
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError("IndexedSlices cannot be reduced with prescale_factor or postscale_factor")


def allreduce(slices, op, name, process_set, ignore_name_scope=False):
    """Joins the rows of all ranks, by one group of allgathers. A row that several ranks have occurs several times."""
    parts = [part for one in slices for part in (one.values, one.indices)]
    gathered = calls.run(ops.farandole_allgather, "sparse_allreduce", parts, name, process_set, grouped=True,
                         ignore_name_scope=ignore_name_scope)  # fmt: skip
    results = []
    for index, one in enumerate(slices):
        values, indices = gathered[2 * index], gathered[2 * index + 1]
        if op == Average:
            size = calls.fact("size", calls.set_id(process_set, "Allreduce"))
            values = values / tf.cast(size, values.dtype)
        results.append(tf.IndexedSlices(values, indices, dense_shape=one.dense_shape))
    return results
