"""Not offered by this version."""

from .._alone import not_offered

raise not_offered("horovod.tensorflow", "use horovod.torch, or Keras 3 on PyTorch (horovod.keras)")
