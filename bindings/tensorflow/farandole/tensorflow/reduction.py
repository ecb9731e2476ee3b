"""The reduction of a list of gradients, which the tape and the optimizers share."""

import contextlib
import re

import tensorflow as tf

from .. import elastic_client
from ..basics import Average, checked_op, global_process_set, native_op
from . import calls, indexed_slices
from .compression import Compression
from .library import ops
from .naming import operation_name

# Gradients are reduced in groups of about this size, which begin when their last gradient is ready: one op for each
# gradient costs more than what begins earlier is worth.
BUCKET_BYTES = 32 << 20


def refuse_strategy():
    """ValueError inside a strategy of tf.distribute."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "tf.distribute and farandole would both average the gradients: leave tf.distribute's strategy, and start "
            "one process for each device with `farandole run`"
        )


class GradientReduction:
    """Averages (or sums) gradients over ranks, by one op for each group of them.

    `groups`: None for groups by size; a number of groups; or a list of lists of variables, of which each is one group,
    while other gradients are reduced alone. Gradients that are None stay None: all ranks must have the same ones.
    ValueError if the options do not fit together.
    """

    def __init__(self, name, compression=Compression.none, sparse_as_dense=False, op=Average,
                 gradient_predivide_factor=1.0, groups=None, process_set=global_process_set):  # fmt: skip
        self.op = checked_op(op)
        if gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor is supported with op=Average only")
        if groups is not None and not isinstance(groups, (int, list, tuple)):
            raise ValueError(f"groups is a number of groups or a list of lists of variables, not {groups!r}")
        if isinstance(groups, int) and groups < 0:
            raise ValueError(f"groups={groups}: the number of groups must not be negative")
        self.name = name
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.predivide = float(gradient_predivide_factor)
        self.groups = groups
        self.process_set = process_set

    @calls.plain
    def __call__(self, gradients, variables=None, use_generic_names=False):
        """The reduced gradients, as a list. `variables`: those of the gradients, in the same order."""
        gradients = list(gradients)
        if not _has_others(self.process_set):
            return gradients
        refuse_strategy()
        variables = list(variables) if variables is not None else [None] * len(gradients)
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in gradients]
        dense = [index for index, one in enumerate(gradients)
                 if one is not None and not isinstance(one, tf.IndexedSlices)]  # fmt: skip
        sparse = [index for index, one in enumerate(gradients) if isinstance(one, tf.IndexedSlices)]
        results = list(gradients)
        with _base_name(self.name, self.process_set) as base:
            labels = [
                f"{base}/{_label(index, variable, use_generic_names)}" for index, variable in enumerate(variables)
            ]
            for group in self._groups(dense, gradients, variables):
                reduced = self._reduce([gradients[index] for index in group], [labels[index] for index in group])
                for index, one in zip(group, reduced):
                    results[index] = one
        if sparse:
            indexed_slices.check(self.op, 1.0, 1.0)
            gathered = indexed_slices.allreduce([gradients[index] for index in sparse], self.op, None,
                                                self.process_set)  # fmt: skip
            for index, one in zip(sparse, gathered):
                results[index] = one
        return results

    def _reduce(self, gradients, names):
        small = [self.compression.compress(one) for one in gradients]
        reduced = calls.run_named(
            ops.farandole_allreduce, [one for one, _ in small], names, calls.set_id(self.process_set, "Allreduce"),
            reduce_op=native_op(self.op), prescale=calls.scale(1 / self.predivide),
            postscale=calls.scale(self.predivide),
        )  # fmt: skip
        return [self.compression.decompress(one, ctx) for one, (_, ctx) in zip(reduced, small)]

    def _groups(self, dense, gradients, variables):
        """Lists of positions in `gradients`, each of which is reduced as one group."""
        if isinstance(self.groups, (list, tuple)):
            return self._given_groups(dense, variables)
        if self.groups:
            count = min(self.groups, len(dense))
            bounds = [len(dense) * number // count for number in range(count + 1)] if count else [0]
            return [dense[begin:end] for begin, end in zip(bounds, bounds[1:])]
        return _buckets(dense, gradients)

    def _given_groups(self, dense, variables):
        group_of = {_key(variable): number for number, group in enumerate(self.groups) for variable in group}
        members, alone = {}, []
        for index in dense:
            number = group_of.get(_key(variables[index])) if variables[index] is not None else None
            if number is None:
                alone.append([index])
            else:
                members.setdefault(number, []).append(index)
        return [*members.values(), *alone]


def _key(variable):
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def _has_others(process_set):
    """Whether there are other ranks, now or, in an elastic job, perhaps later. True before init, so that ops fail."""
    return process_set.size() != 1 or elastic_client.is_elastic()


def _buckets(dense, gradients):
    """Groups of about BUCKET_BYTES, last gradients first, which backpropagation computes first.

    In eager mode all gradients are ready, so they are one group.
    """
    groups, size = [], 0
    for index in reversed(dense):
        count = gradients[index].shape.num_elements()
        size_bytes = None if count is None else count * gradients[index].dtype.size
        joins = groups and (tf.executing_eagerly() or (size_bytes is not None and size + size_bytes <= BUCKET_BYTES))
        if joins:
            groups[-1].append(index)
            size += size_bytes or 0
        else:
            groups.append([index])
            size = BUCKET_BYTES if size_bytes is None else size_bytes
    return groups


@contextlib.contextmanager
def _base_name(name, process_set):
    with operation_name("gradients", None if tf.executing_eagerly() else name, None, process_set, True) as base:
        yield base


def _label(index, variable, is_generic):
    """The name of one gradient: its position, and the variable for the reader of a message.

    TensorFlow counts layers of one kind in their names, and ranks may count differently.
    """
    name = None if is_generic else getattr(variable, "path", None) or getattr(variable, "name", None)
    return f"{index}.{re.sub('_[0-9]+(?=/|:|$)|:0$', '', name)}" if name else str(index)


def scale_local(gradient, process_set):
    """A gradient that is not reduced, divided by the number of ranks, so that it weighs as much as an average."""
    if gradient is None:
        return None
    size = calls.fact("size", calls.set_id(process_set, "scale_local_gradients"))
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(size, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size, gradient.dtype)
