"""Registers backend="farandole" with torch.distributed. Its code is imported when a program first uses it.

PyTorch calls register() in the middle of its own import, so this module must not import torch at its top level.
"""


def _create(options, backend_options=None):
    from .torch.distributed import create

    return create(options, backend_options)


def register():
    """Registers the backend. Does nothing the second time, nor where torch was built without torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "FARANDOLE"):
        dist.Backend.register_backend("farandole", _create, extended_api=True, devices=["cpu", "cuda"])
