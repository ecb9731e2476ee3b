"""Loaders that prepare batches in a thread of their own, beside the training loop."""

from .data_loader_base import AsyncDataLoaderMixin, BaseDataLoader  # noqa: F401
