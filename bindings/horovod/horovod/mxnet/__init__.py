"""Not offered: MXNet has been retired."""

from .._alone import not_offered

raise not_offered("horovod.mxnet", "MXNet has had no release since 2022; train with PyTorch (horovod.torch)")
