"""Handles of operations in flight. A handle is a number; synchronize(handle) returns the result, once."""

import itertools

import torch

from .. import _native, errors


class _Pending:
    """An operation in flight: the function that creates its result, the tensors that it uses, and its stream."""

    __slots__ = ("native", "finish", "keep", "stream")

    def __init__(self, native, finish, keep, stream):
        self.native = native
        self.finish = finish
        self.keep = keep
        self.stream = stream

    def wait(self):
        """Waits for the operation. On a device, the current stream waits for it, and until then no stream does."""
        if self.stream is None:
            return self.native.wait()
        now = torch.cuda.current_stream(self.stream.device)
        self.native.wait(stream=now.cuda_stream)
        if now.cuda_stream != self.stream.cuda_stream:
            # The memory belongs to the other stream, which does not wait for the operation.
            for one in {id(one): one for one in _tensors_in(self.keep) if not one.is_cpu}.values():
                one.record_stream(now)

    def result(self):
        return self.finish(self.native)


def _tensors_in(keep):
    for one in keep if isinstance(keep, (list, tuple)) else (keep,):
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors_in(one)


_numbers = itertools.count()
_pending = {}


def enqueue(group, operations, stream, keep, finish):
    """Submits the operations and returns their handle.

    `keep` stays referenced until synchronize(), which calls `finish` with the native handle to create the result.
    `stream` is the one on which devices run the operations; None on the CPU.
    """
    try:
        native = _native.submit(group.member(), operations, keep)
    except errors.Error as error:
        raise errors.as_horovod(error) from None
    number = next(_numbers)
    _pending[number] = _Pending(native, finish, keep, stream)
    return number


def poll(handle):
    """Whether synchronize(handle) would return at once. ValueError for an unknown handle."""
    if handle not in _pending:
        raise ValueError(f"Handle {handle} was not created or has been synchronized already.")
    return _pending[handle].native.done()


def synchronize(handle):
    """Waits for an operation and returns its result. None for a handle that is unknown or was synchronized already.

    HorovodInternalError if the operation has failed.
    """
    pending = _pending.get(handle)
    if pending is None:
        return None
    try:
        pending.wait()
    except errors.Error as error:
        _pending.pop(handle, None)
        raise errors.as_horovod(error) from None
    _pending.pop(handle, None)
    return pending.result()


def synchronize_all(handles):
    """Waits for operations and returns their results. If some fail, raises the first error after all have ended.

    An operation that is not waited for keeps its name, so that the program could not submit it again.
    """
    results, failure = [], None
    for handle in handles:
        try:
            results.append(synchronize(handle))
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def first_of(handle):
    """Makes the first element of a handle's list its result."""
    pending = _pending[handle]
    finish = pending.finish
    pending.finish = lambda native: finish(native)[0]
    return handle
