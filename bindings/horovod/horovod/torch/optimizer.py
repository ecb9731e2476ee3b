"""DistributedOptimizer."""

from farandole.torch.optimizer import DistributedOptimizer  # noqa: F401
