"""What PyTorch calls when it is imported: backend="farandole" becomes known, and its code is imported when it is used."""

import torch.distributed as dist


def _create(options, backend_options=None):
    from .torch.distributed import create

    return create(options, backend_options)


def register():
    """Does nothing the second time, nor where torch was built without torch.distributed."""
    if dist.is_available() and not hasattr(dist.Backend, "FARANDOLE"):
        dist.Backend.register_backend("farandole", _create, extended_api=True, devices=["cpu", "cuda"])
