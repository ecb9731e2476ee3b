"""The notice for releases of PyTorch with which the tests of this version have not been run."""

import sys

import torch

from ..doctor.packages import tried_range, was_tried

_was_notified = False


def notice():
    """One line if this release of PyTorch is outside of the tried range; None otherwise."""
    if was_tried("PyTorch", torch.__version__):
        return None
    return f"farandole: PyTorch {torch.__version__} has not been tried with this version, only {tried_range('PyTorch')}"


def notify_once(rank):
    """Writes the notice to stderr on rank 0, once per process."""
    global _was_notified
    if _was_notified or rank != 0:
        return
    _was_notified = True
    text = notice()
    if text is not None:
        print(text, file=sys.stderr, flush=True)
