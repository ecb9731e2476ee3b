"""horovod.spark.torch: an estimator for PyTorch models."""

from farandole.integrations.spark.torch import TorchEstimator, TorchModel  # noqa: F401
