"""SyncBatchNorm."""

from farandole.torch.sync_batch_norm import SyncBatchNorm  # noqa: F401
