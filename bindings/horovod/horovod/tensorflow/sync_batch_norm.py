"""SyncBatchNormalization, which imports Keras."""

from farandole.tensorflow.sync_batch_norm import SyncBatchNormalization  # noqa: F401
