"""Operations on tensors of CUDA devices.

Each process group has its own stream on each device, as torch's NCCL backend has, so that collectives overlap with the
caller's computation.

    started     the group's stream waits for the caller's current stream, and the collective is queued on it
    wait()      the caller's current stream waits for the collective, and not for later ones of the group's stream; the
                host waits only until the collective is queued
    completed   the device has finished the collective
    blocking    the collective is queued on the caller's current stream

Messages follow the same rules. They go from device to device by NCCL where both ranks can use it. Those with each rank
have a stream of their own, so that a collective never waits for a message which one rank has started before it, and the
other one behind it.
"""

import torch

from ..tensors import place_of
from .futures import device_future
from .work import Work


def device_of(tensors, keep):
    """The device of a call's tensors; None for the CPU."""
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
    """A process group's own streams on each device: one for collectives, and one for the messages with each rank."""

    def __init__(self):
        self._streams = {}

    def enter(self, device, keep, peer=None):
        """The stream for collectives on the device, or for messages with a rank, ordered after everything that the
        caller has queued on its own stream."""
        stream = self._streams.get((device, peer))
        if stream is None:
            stream = self._streams[device, peer] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        for tensor in _tensors_of(keep):
            tensor.record_stream(stream)  # keeps its memory from reuse until the stream has finished with it
        return stream


def is_captured():
    """Whether the current stream is being captured into a graph."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def current_place(device, keep):
    return place_of(next(_tensors_of(keep)), torch.cuda.current_stream(device))


def place_on(stream, keep):
    return place_of(next(_tensors_of(keep)), stream)


class DeviceWork(Work):
    """A Work whose results are valid on a stream after that stream waits for the collective."""

    def __init__(self, pendings, tensors, finish, origin, stream, keep=()):
        super().__init__(pendings, tensors, finish, origin)
        self._stream = stream
        self._keep = keep if finish is not None else ()

    def is_completed(self):
        """Whether the device has finished the operation, or it has failed. Does not block."""
        return all(one.done_on_device() for one in self._pendings)

    def _arrive(self):
        now = torch.cuda.current_stream(self._stream.device)
        for one in self._pendings:
            one.order_before(now.cuda_stream)
        # The rest is copied on this stream, and its memory may belong to another stream.
        for tensor in _tensors_of(self._keep):
            tensor.record_stream(now)
        self._keep = ()

    def _new_future(self):
        return device_future(self, self._stream.device)
