"""SyncBatchNormalization: batch normalisation over the batches of all ranks together."""

import tensorflow as tf

from ..basics import Sum, is_initialized, size
from .ops import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Replaces keras.layers.BatchNormalization: mean and variance are those of all ranks' samples, in training.

    Batches may differ in size between ranks. The gradients are those of the sum of all ranks' losses, of which
    DistributedGradientTape and DistributedOptimizer take the average. ValueError for fused=True, of which TensorFlow
    computes the statistics itself.
    """

    def __init__(self, fused=False, **kwargs):
        if fused:
            raise ValueError("SyncBatchNormalization does not support fused=True")
        if getattr(tf.keras, "__version__", "2").startswith("2"):
            kwargs["fused"] = False
        super().__init__(**kwargs)

    def _moments(self, inputs, *options, **named_options):
        # Keras calls it in training only: (inputs, mask) since version 3, (inputs, axes, keep_dims[, mask]) before.
        mean, variance = super()._moments(inputs, *options, **named_options)
        if not is_initialized() or size() == 1:
            return mean, variance
        mask = named_options.get("mask", options[0] if len(options) == 1 else None)
        return _of_all_ranks(mean, variance, _samples(inputs, mean, mask))


def _samples(inputs, mean, mask):
    """The number of samples for each channel."""
    if mask is not None:
        return tf.reduce_sum(tf.cast(mask, mean.dtype))
    return tf.cast(tf.size(inputs) / tf.size(mean), mean.dtype)


def _of_all_ranks(mean, variance, count):
    """The statistics of all ranks' samples: first the mean, then the squared distances from it.

    Sums of squares, which need one operation less, lose the precision of a small variance.
    """
    shape = tf.shape(mean)
    mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
    has_samples = count > 0  # those of an empty batch are no numbers
    mean = tf.where(has_samples, mean, tf.zeros_like(mean))
    variance = tf.where(has_samples, variance, tf.zeros_like(variance))
    sums = allreduce(tf.concat([mean * count, [count]], 0), op=Sum)
    total = tf.maximum(sums[-1], 1)
    common = sums[:-1] / total
    spread = allreduce((variance + tf.square(mean - common)) * count, op=Sum) / total
    return tf.reshape(common, shape), tf.reshape(spread, shape)
