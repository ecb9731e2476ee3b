"""Collectives on tensors of CUDA devices: each process group has a stream of its own on each device, as torch's own
backend for NCCL has, so that what is started overlaps with what the caller computes meanwhile.

    started     the group's stream waits for the caller's current one, and the collective is queued there
    wait()      the caller's current stream waits for the group's; the host only until the collective is queued
    blocking    the collective is queued on the caller's current stream itself
"""

import torch

from ..tensors import place_of
from .futures import device_future
from .work import Work


def device_of(tensors, keep):
    """The device that a call's tensors lie on; None for the CPU."""
    for one in (*tensors, *(keep if isinstance(keep, tuple) else (keep,))):
        if isinstance(one, torch.Tensor):
            return None if one.is_cpu else one.device
    return None


def _tensors_of(keep):
    for one in keep if isinstance(keep, tuple) else (keep,):
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors_of(tuple(one))


class GroupStreams:
    """A process group's own streams."""

    def __init__(self):
        self._streams = {}

    def enter(self, device, keep):
        """The group's stream on the device, behind everything that the caller has queued on its own."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        for tensor in _tensors_of(keep):
            tensor.record_stream(stream)  # its memory is not lent to others before the stream is through with it
        return stream


def current_place(device, keep):
    return place_of(next(_tensors_of(keep)), torch.cuda.current_stream(device))


def place_on(stream, keep):
    return place_of(next(_tensors_of(keep)), stream)


class DeviceWork(Work):
    """A Work whose results are there for a stream once it waits for the group's."""

    def __init__(self, pendings, tensors, finish, origin, stream, keep=()):
        super().__init__(pendings, tensors, finish, origin)
        self._stream = stream
        self._keep = keep if finish is not None else ()

    def _arrive(self):
        now = torch.cuda.current_stream(self._stream.device)
        now.wait_stream(self._stream)
        # What remains to be copied is read here, and its memory may be another stream's.
        for tensor in _tensors_of(self._keep):
            tensor.record_stream(now)
        self._keep = ()

    def _new_future(self):
        return device_future(self, self._stream.device)
