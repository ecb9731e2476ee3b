"""Collectives of tensors, in eager mode and in graphs.

All of them have gradients, see gradients.py. A tensor may also be a variable, a NumPy array or a number. In a graph an
operation is removed if its result is not used, as TensorFlow does with all operations without side effects: use the
result on all ranks or on none.

Failures are TensorFlow's errors: InvalidArgumentError for arguments, FailedPreconditionError if ranks disagree or
before init, AbortedError for what is not supported, UnknownError if ranks are lost or have shut down.
"""

import tensorflow as tf

from ..basics import Adasum, Average, Sum, check_adasum, checked_op, chosen_op, global_process_set, native_op
from . import calls, indexed_slices
from .calls import dense, plain, scale
from .compression import Compression
from .library import ops


def _reduction(average, op, process_set):
    op = chosen_op(average, op)
    if op == Adasum and process_set.size() is not None:
        check_adasum(process_set)
    return op


def reduce_tensors(tensors, op, prescale, postscale, name, process_set, grouped, ignore_name_scope=False):
    """Allreduces of dense tensors by one op. Returns their results as a list."""
    return calls.run(ops.farandole_allreduce, "grouped_allreduce" if grouped else "allreduce", tensors, name,
                     process_set, grouped=grouped, ignore_name_scope=ignore_name_scope, reduce_op=native_op(op),
                     prescale=scale(prescale), postscale=scale(postscale))  # fmt: skip


@plain
def allreduce(tensor, average=None, device_dense="", device_sparse="", compression=Compression.none, op=None,
              prescale_factor=1.0, postscale_factor=1.0, name=None, process_set=global_process_set,
              ignore_name_scope=False):  # fmt: skip
    """Computes postscale * op over ranks of (prescale * tensor). Returns a tensor of the same shape.

    Every rank of the set passes the same shape and type. `op`: Average (the default), Sum, Min, Max, Product or Adasum.
    `name` matches the operation with those of other ranks; None: the name of the tensor in a graph, and one name for
    all unnamed operations in eager mode. `compression` is applied before sending. The gradients of Average and Sum are
    allreduces too.

    tf.IndexedSlices give tf.IndexedSlices with the rows of all ranks; then `op` is Average or Sum, and there are no
    factors: else NotImplementedError. `device_dense` and `device_sparse` are ignored.
    """
    op = _reduction(average, op, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        indexed_slices.check(op, prescale_factor, postscale_factor)
        return indexed_slices.allreduce([tensor], op, name, process_set, ignore_name_scope)[0]
    small, ctx = compression.compress(dense(tensor))
    (result,) = reduce_tensors(
        [small], op, prescale_factor, postscale_factor, name, process_set, False, ignore_name_scope
    )
    return compression.decompress(result, ctx)


@plain
def grouped_allreduce(tensors, average=None, device_dense="", device_sparse="", compression=Compression.none, op=None,
                      prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set,
                      ignore_name_scope=False, name=None):  # fmt: skip
    """Reduces several tensors as one unit, each as allreduce does. Returns the list of results; [] for [].

    None of the reductions starts before all tensors are ready on all ranks. Types and shapes may differ between the
    tensors, and tf.IndexedSlices may be among them.
    """
    op = _reduction(average, op, process_set)
    tensors = [one if isinstance(one, tf.IndexedSlices) else dense(one) for one in tensors]
    results = list(tensors)
    sparse = [index for index, one in enumerate(tensors) if isinstance(one, tf.IndexedSlices)]
    whole = [index for index, one in enumerate(tensors) if not isinstance(one, tf.IndexedSlices)]
    if sparse:
        indexed_slices.check(op, prescale_factor, postscale_factor)
        gathered = indexed_slices.allreduce([tensors[index] for index in sparse], op, name, process_set,
                                            ignore_name_scope)  # fmt: skip
        for index, one in zip(sparse, gathered):
            results[index] = one
    if whole:
        small = [compression.compress(tensors[index]) for index in whole]
        reduced = reduce_tensors([one for one, _ in small], op, prescale_factor, postscale_factor, name, process_set,
                                 True, ignore_name_scope)  # fmt: skip
        for index, one, (_, ctx) in zip(whole, reduced, small):
            results[index] = compression.decompress(one, ctx)
    return results


def _gather(tensors, name, process_set, grouped, ignore_name_scope):
    return calls.run(ops.farandole_allgather, "grouped_allgather" if grouped else "allgather", tensors, name,
                     process_set, grouped=grouped, ignore_name_scope=ignore_name_scope)  # fmt: skip


@plain
def allgather(tensor, name=None, ignore_name_scope=False, process_set=global_process_set):
    """The tensors of all ranks, joined along their first dimension, which may differ between ranks.

    Its gradient is the average over ranks.
    """
    return _gather([dense(tensor)], name, process_set, False, ignore_name_scope)[0]


@plain
def grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=global_process_set):
    """Gathers several tensors as one unit, each as allgather does. Returns the list of results; [] for []."""
    tensors = [dense(one) for one in tensors]
    return list(_gather(tensors, name, process_set, True, ignore_name_scope)) if tensors else []


@plain
def broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=global_process_set):
    """The tensor of rank `root_rank` (of the world) on every rank of the set.

    All ranks pass the same shape and type.
    """
    return calls.run(ops.farandole_broadcast, "broadcast", [dense(tensor)], name, process_set,
                     ignore_name_scope=ignore_name_scope, root_rank=int(root_rank))[0]  # fmt: skip


@plain
def grouped_broadcast(tensors, root_rank, name=None, process_set=global_process_set):
    """Broadcasts several tensors as one unit. Returns the list of results; [] for []."""
    tensors = [dense(one) for one in tensors]
    if not tensors:
        return []
    return list(calls.run(ops.farandole_broadcast, "grouped_broadcast", tensors, name, process_set, grouped=True,
                          root_rank=int(root_rank)))  # fmt: skip


@plain
def alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=global_process_set):
    """Sends splits[r] rows (entries of the first dimension) to each rank r.

    Without `splits` all ranks get the same number of rows, and the result is the tensor of the received rows. With
    `splits` (int32, a tensor or a list of one number for each rank) the result is a pair: the received rows, and an
    int32 tensor with the number of rows from each rank.
    """
    given = tf.constant([], tf.int32) if splits is None else splits
    if not isinstance(given, (tf.Tensor, tf.Variable)):
        given = tf.convert_to_tensor(given, tf.int32)
    if given.dtype != tf.int32:
        raise tf.errors.InvalidArgumentError(
            None, None, f"alltoall expects splits to contain 32-bit integer elements, not {given.dtype.name}."
        )
    (rows,), received = calls.run(ops.farandole_alltoall, "alltoall", [dense(tensor)], name, process_set, given,
                                  ignore_name_scope=ignore_name_scope)  # fmt: skip
    return rows if splits is None else (rows, received)


def _reduce_rows(tensors, compression, op, name, process_set, prescale, postscale, grouped, ignore_name_scope=False):
    if checked_op(op) not in (Average, Sum):
        raise tf.errors.AbortedError(None, None, "Reducescatter currently only supports AVERAGE and SUM.")
    small = [compression.compress(dense(tensor)) for tensor in tensors]
    if not small:
        return []
    results = calls.run(ops.farandole_reducescatter, "grouped_reducescatter" if grouped else "reducescatter",
                        [one for one, _ in small], name, process_set, grouped=grouped,
                        ignore_name_scope=ignore_name_scope, reduce_op=native_op(op), prescale=scale(prescale),
                        postscale=scale(postscale))  # fmt: skip
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, small)]


@plain
def reducescatter(tensor, device_dense="", compression=Compression.none, op=Average, name=None,
                  process_set=global_process_set, ignore_name_scope=False, prescale_factor=1.0,
                  postscale_factor=1.0):  # fmt: skip
    """Reduces the tensors of all ranks and returns this rank's rows (entries of the first dimension).

    `op`: Average or Sum. If the rows do not divide evenly, the first ranks get one more.

    The gradient is that of Horovod: the gradients of all ranks joined, times the number of ranks for Sum. It is the
    derivative of the sum of all ranks' losses times the number of ranks. `device_dense` is ignored.
    """
    return _reduce_rows([tensor], compression, op, name, process_set, prescale_factor, postscale_factor, False,
                        ignore_name_scope)[0]  # fmt: skip


@plain
def grouped_reducescatter(tensors, device_dense="", compression=Compression.none, op=Average,
                          process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0,
                          name=None):  # fmt: skip
    """Reduces and scatters several tensors as one unit, each as reducescatter does. Returns the list of results."""
    return _reduce_rows(tensors, compression, op, name, process_set, prescale_factor, postscale_factor, True)


@plain
def join():
    """Declares that this rank has no more data, and blocks until all ranks have joined.

    Meanwhile this rank contributes zeros to the allreduces of the others. The result is an int32 tensor: the rank that
    joined last.
    """
    calls.compiled.refuse("join")
    return ops.farandole_join()


@plain
def barrier(process_set=global_process_set, name=None):
    """Blocks until all ranks of the set have called it. In a graph it runs in the order of the program."""
    calls.compiled.refuse("barrier")
    with calls.operation_name("barrier", name or "barrier", None, process_set) as full_name:
        ops.farandole_barrier(tensor_names=[full_name], process_set=calls.set_id(process_set, "Barrier"))


# ---- Numbers of ranks, at run time ----------------------------------------------------------------------------------


@plain
def size_op(process_set_id=0, name=None):
    """The number of ranks of a process set, as an int32 tensor that is computed at each run of a graph."""
    return calls.fact("size", process_set_id)


@plain
def rank_op(name=None):
    """This rank's number, as an int32 tensor that is computed at each run of a graph."""
    return calls.fact("rank")


@plain
def local_size_op(name=None):
    """The number of ranks on this host, as an int32 tensor that is computed at each run of a graph."""
    return calls.fact("local_size")


@plain
def local_rank_op(name=None):
    """This rank's number on its host, as an int32 tensor that is computed at each run of a graph."""
    return calls.fact("local_rank")


@plain
def process_set_included_op(process_set_id=0, name=None):
    """1 if the process set includes this rank, else 0, as an int32 tensor that is computed at each run of a graph."""
    return calls.fact("included", process_set_id)
