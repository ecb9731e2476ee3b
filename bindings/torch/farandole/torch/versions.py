"""The releases of PyTorch with which the tests of this version have been run, and the notice for others."""

import sys

import torch

OLDEST_TRIED, NEWEST_TRIED = (2, 9), (2, 15)
_was_notified = False


def _release():
    """(major, minor) of the running PyTorch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def notice():
    """One line if this release of PyTorch is outside of the tried range; None otherwise."""
    if OLDEST_TRIED <= _release() <= NEWEST_TRIED:
        return None
    oldest, newest = (".".join(map(str, one)) for one in (OLDEST_TRIED, NEWEST_TRIED))
    return f"farandole: PyTorch {torch.__version__} has not been tried with this version, only {oldest} to {newest}"


def notify_once(rank):
    """Writes the notice to stderr on rank 0, once per process."""
    global _was_notified
    if _was_notified or rank != 0:
        return
    _was_notified = True
    text = notice()
    if text is not None:
        print(text, file=sys.stderr, flush=True)
