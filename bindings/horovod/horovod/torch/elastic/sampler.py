"""The names of farandole.torch.elastic that programs import from here."""

from farandole.torch import elastic as _elastic


def __getattr__(name):
    return getattr(_elastic, name)
