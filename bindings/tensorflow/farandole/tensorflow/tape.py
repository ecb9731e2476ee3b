"""DistributedGradientTape: tf.GradientTape whose gradients are reduced over all ranks."""

import tensorflow as tf

from ..basics import Average, global_process_set
from .calls import plain
from .compression import Compression
from .reduction import GradientReduction, scale_local


class _Distributed:
    """What a distributed tape has beside the methods of its class."""

    @plain
    def gradient(self, target, sources, output_gradients=None, use_generic_names=False, **options):
        """The gradients of all ranks, reduced, in the structure of `sources`.

        Those of local sources stay those of this rank. `use_generic_names`: names have no names of variables, which
        may differ between ranks. `options` are those of tf.GradientTape.gradient.
        """
        gradients = super().gradient(target, sources, output_gradients, **options)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        variables = tf.nest.flatten(sources, expand_composites=False)
        is_local = [_key(variable) in self._local_sources for variable in variables]
        reduced = self._reduction(
            [None if local else one for one, local in zip(flat, is_local)], variables, use_generic_names
        )
        for index, local in enumerate(is_local):
            if local:
                own = flat[index]
                reduced[index] = scale_local(own, self._reduction.process_set) if self._scales_local else own
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source):
        """Excludes a variable from the reduction."""
        self._local_sources.add(_key(source))

    @plain
    def get_local_and_global_gradients(self, sources, gradients):
        """The gradients of local sources, and those of all others, as two lists."""
        pairs = list(zip(sources, gradients))
        return ([one for source, one in pairs if _key(source) in self._local_sources],
                [one for source, one in pairs if _key(source) not in self._local_sources])  # fmt: skip


def _key(source):
    return source.ref() if hasattr(source, "ref") else id(source)


def DistributedGradientTape(gradtape, device_dense="", device_sparse="", compression=Compression.none,
                            sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,
                            process_set=global_process_set, scale_local_gradients=True):  # fmt: skip
    """A tape that has recorded what `gradtape` has recorded, and whose gradient() reduces the gradients over all ranks.

    It is an instance of the class of `gradtape`. `op`: Average, Sum or Adasum. `sparse_as_dense` reduces
    tf.IndexedSlices as dense tensors. `gradient_predivide_factor` divides gradients by it before the sum and multiplies
    by it afterwards. `groups` (or, in older programs, `num_groups`): how gradients are grouped, see GradientReduction;
    each group is reduced as one unit. `scale_local_gradients` divides gradients of local sources by the number of
    ranks. `device_dense` and `device_sparse` are ignored.
    """
    kind = type(gradtape)
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"DistributedGradientTape takes a tf.GradientTape, not {kind.__name__}")
    if isinstance(gradtape, _Distributed):
        raise ValueError("DistributedGradientTape: this tape is distributed already, and would reduce gradients twice")
    tape = object.__new__(type(kind.__name__, (_Distributed, kind), {"__doc__": kind.__doc__}))
    tape.__dict__.update(gradtape.__dict__)
    tape._reduction = GradientReduction("DistributedGradientTape", compression, sparse_as_dense, op,
                                        gradient_predivide_factor, groups if groups is not None else num_groups,
                                        process_set)  # fmt: skip
    tape._local_sources = set()
    tape._scales_local = scale_local_gradients
    return tape


def PartialDistributedGradientTape(gradtape, device_dense="", device_sparse="", compression=Compression.none,
                                   sparse_as_dense=False, op=Average, gradient_predivide_factor=1.0, num_groups=0,
                                   groups=None, process_set=global_process_set, local_layers=None,
                                   scale_local_gradients=True):  # fmt: skip
    """DistributedGradientTape that does not reduce the gradients of `local_layers`, a Keras layer or a list of them.

    ValueError if one of them has no trainable_variables.
    """
    tape = DistributedGradientTape(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
                                   gradient_predivide_factor, num_groups, groups, process_set,
                                   scale_local_gradients)  # fmt: skip
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if layer is None:
            continue
        if not hasattr(layer, "trainable_variables"):
            raise ValueError(f"local_layers: {layer!r} is not a Keras layer")
        for variable in layer.trainable_variables:
            tape.register_local_source(variable)
    return tape
