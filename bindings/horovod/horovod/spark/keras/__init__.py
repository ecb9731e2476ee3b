"""horovod.spark.keras: an estimator for Keras models."""

from farandole.integrations.spark.keras import KerasEstimator, KerasModel  # noqa: F401
