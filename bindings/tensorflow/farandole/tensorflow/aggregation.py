"""Accumulation of gradients on one rank over several backward passes, before they are reduced."""

import contextlib

import tensorflow as tf


class LocalGradientAggregationHelper:
    """Sums gradients over `backward_passes_per_step` calls, and reduces the sums in the last one.

    `allreduce_func(gradients, variables)` returns the reduced gradients. In the other calls compute_gradients returns
    the sums so far, and apply_gradients does nothing. For graphs and eager mode. tf.IndexedSlices become dense tensors.
    """

    def __init__(self, backward_passes_per_step, allreduce_func, sparse_as_dense=True,
                 average_aggregated_gradients=False):  # fmt: skip
        self.backward_passes_per_step = backward_passes_per_step
        self._reduce = allreduce_func
        self._averages = average_aggregated_gradients
        self._counter = None
        self._is_last = None
        self._sums = {}

    def variables(self):
        """The variables that the helper has made: they are local to a rank."""
        return [one for one in [self._counter, *self._sums.values()] if one is not None]

    def compute_gradients(self, gradients, variables):
        """Adds the gradients to the sums. Returns the reduced sums in every last call, else the sums."""
        self._make_variables(gradients, variables)
        sums = []
        for gradient, variable in zip(gradients, variables):
            if gradient is None:
                sums.append(None)
                continue
            total = self._sums[variable.ref()]
            is_first = tf.equal(self._counter % self.backward_passes_per_step, 0)
            before = tf.where(is_first, tf.zeros_like(total), total)
            sums.append(total.assign(before + tf.convert_to_tensor(gradient), read_value=True))
        present = [index for index, one in enumerate(sums) if one is not None]
        with tf.control_dependencies([sums[index] for index in present] if not tf.executing_eagerly() else []):
            passed = self._counter.assign_add(1, read_value=True)
        self._is_last = tf.equal(passed % self.backward_passes_per_step, 0)
        totals = [tf.convert_to_tensor(sums[index]) for index in present]

        def reduced():
            factor = 1 / self.backward_passes_per_step if self._averages else 1
            return self._reduce([one * tf.cast(factor, one.dtype) for one in totals],
                                [variables[index] for index in present])  # fmt: skip

        results = tf.cond(self._is_last, reduced, lambda: totals)
        for index, one in zip(present, results):
            sums[index] = one
        return sums

    def apply_gradients(self, apply):
        """Calls `apply` if the call of compute_gradients before has reduced."""

        def applied():
            done = apply()
            with tf.control_dependencies([] if done is None or tf.executing_eagerly() else [done]):
                return tf.constant(True)

        return tf.cond(self._is_last, applied, lambda: tf.constant(False))

    def _make_variables(self, gradients, variables):
        # Lifted out of a tf.function, which may make variables at its first trace only.
        with tf.init_scope() if tf.compat.v1.executing_eagerly_outside_functions() else contextlib.nullcontext():
            if self._counter is None:
                self._counter = _local_variable(tf.zeros([], tf.int64))
            for gradient, variable in zip(gradients, variables):
                if gradient is not None and variable.ref() not in self._sums:
                    self._sums[variable.ref()] = _local_variable(tf.zeros(variable.shape, variable.dtype))


def _local_variable(value):
    if tf.compat.v1.executing_eagerly_outside_functions():
        return tf.Variable(value, trainable=False)
    return tf.compat.v1.Variable(value, trainable=False, use_resource=True)
