"""Elastic training."""

from farandole.tensorflow.elastic import ObjectState, State, TensorFlowKerasState, TensorFlowState, run  # noqa: F401
