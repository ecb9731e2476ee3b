"""Groups whose operations pass through torch's dispatcher, where torch calls the hooks of a process group.

From PyTorch 2.15 on, torch attaches hooks to every group: its flight recorder, and checks for NaN. The dispatcher calls
them before and after an operation, and calls a backend in between:

    dist.all_reduce -> ProcessGroup.allreduce -> dispatcher: hooks -> Backend.allreduce -> Collectives.allreduce

The dispatcher returns a Work of its own, which can only be waited for. The group therefore keeps the Work that its
backend has returned, and returns that one. An operation that no hook watches skips the dispatcher.
"""

import functools
import os
import threading
import weakref

import torch
import torch.distributed as dist

from .calls import CallOptions

_ORDINARY = (torch.Tensor, torch.nn.Parameter)
OPERATIONS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "broadcast",
    "barrier",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "alltoall",
    "all_to_all_single",
    "send",
    "recv",
    "recv_anysource",
)
_NAMES_IN_CPP = {"recv_anysource": "recvAnysource"}  # where C++ finds a method of a group by another name
# Older names, which C++ tries where it does not find the current one. They are torch's own methods, which call the
# current ones.
OLD_NAMES = ("alltoall_base", "allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")


def _base():
    """torch's class for backends written in Python; None before PyTorch 2.14, which cannot call them."""
    base = getattr(dist, "BackendBase", None) or getattr(torch._C._distributed_c10d, "Backend", None)
    try:
        type("Probe", (base,), {})(0, 1)
    except TypeError:
        return None
    return base


_Base = _base() if dist.is_available() else None


def _recorder_is_on():
    """Whether torch attaches its flight recorder to each new group, by the variables that it reads itself."""
    if not hasattr(dist.distributed_c10d, "_maybe_attach_flight_recorder"):  # 2.14 has the hook, but attaches none
        return False
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if os.environ.get(name):
            return int(os.environ[name]) > 0
    return True


def _hooks_are_expected():
    return _recorder_is_on() or os.environ.get("TORCH_DIST_NAN_CHECK") == "1"


def _all_tensors(arguments, accept):
    """Whether `accept` holds for each tensor in the arguments and in their lists."""
    for one in arguments:
        if isinstance(one, torch.Tensor):
            if not accept(one):
                return False
        elif isinstance(one, (list, tuple)) and not _all_tensors(one, accept):
            return False
    return True


class Dispatcher:
    """The dispatched operations of one group."""

    def __init__(self, group, device_types):
        self._device_types = frozenset(device_types)
        self._thread = threading.local()
        self.hooked = _hooks_are_expected()
        backend = Backend(group, self)
        for device_type in device_types:
            group._register_backend(torch.device(device_type), dist.ProcessGroup.BackendType.CUSTOM, backend)
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def _accepts(self, tensor):
        # The dispatcher would treat other tensors in its own way: it runs the code of subclasses, and copies lazily
        # conjugated tensors.
        return (
            type(tensor) in _ORDINARY
            and tensor.device.type in self._device_types
            and tensor.layout is torch.strided
            and not (tensor.is_conj() or tensor.is_neg())
        )

    def takes(self, name, arguments):
        """Whether a call of the group passes through the dispatcher. Calls from inside of another call do not."""
        if not self.hooked or getattr(self._thread, "inside", False):
            return False
        if name == "barrier" and "cpu" not in self._device_types:
            return False  # torch runs it on a tensor of the CPU
        if any(isinstance(one, CallOptions) for one in arguments):
            return False
        return _all_tensors(arguments, self._accepts)

    def enter(self):
        """Begins a call of torch's own method, which leads back to the backend."""
        self._thread.inside = True

    def leave(self):
        """Ends it, and returns the Work that the backend has returned."""
        self._thread.inside = False
        return self._thread.__dict__.pop("work", None)

    def keep(self, work):
        """Keeps the Work of the group's own method for the call that surrounds it."""
        if getattr(self._thread, "inside", False):
            self._thread.work = work
        return work


if _Base is not None:

    class Backend(_Base):
        """The backend that torch's dispatcher calls for a group. Its operations are those of the group."""

        def __init__(self, group, dispatcher):
            super().__init__(group.getRank(), group.getSize())
            self._group = weakref.ref(group)  # the group owns its backends
            self._dispatcher = dispatcher

        def getBackendName(self):
            return "farandole"

        def set_timeout(self, timeout):
            self._group().set_timeout(timeout)


def _implementation(own):
    def call(self, *arguments):
        return self._dispatcher.keep(own(self._group(), *arguments))

    return call


def _entry(name, own, base):
    @functools.wraps(own)
    def call(self, *arguments, **options):
        dispatcher = self._dispatcher
        if not dispatcher.takes(name, (*arguments, *options.values())):
            return dispatcher.keep(own(self, *arguments, **options))
        dispatcher.enter()
        try:
            base(self, *arguments, **options)
        finally:
            work = dispatcher.leave()
        return work

    # A virtual method of C++ that is called from a Python function of its own name, for the same object, does not call
    # that function again: pybind11 takes it for a call through super().
    call.__code__ = call.__code__.replace(co_name=_NAMES_IN_CPP.get(name, name))
    return call


def _noting(base):
    @functools.wraps(base)
    def call(self, *arguments, **options):
        self._dispatcher.hooked = True
        return base(self, *arguments, **options)

    return call


def dispatched(group_class):
    """A decorator: routes the operations of a class of groups through torch's dispatcher, from PyTorch 2.14 on."""
    if _Base is None:
        return group_class
    own_names = [name for one in group_class.__mro__ if one.__module__.startswith("farandole.") for name in vars(one)]
    for name in OPERATIONS:
        own, base = getattr(group_class, name), getattr(dist.ProcessGroup, name)
        setattr(Backend, name, _implementation(own))
        entry = _entry(name, own, base)
        for alias in [one for one in own_names if getattr(group_class, one) is own]:
            setattr(group_class, alias, entry)
    for name in OLD_NAMES:
        setattr(group_class, name, getattr(dist.ProcessGroup, name))
    for name in ("register_pre_hook", "register_post_hook"):
        if hasattr(dist.ProcessGroup, name):
            setattr(group_class, name, _noting(getattr(dist.ProcessGroup, name)))
    return group_class


def dispatcher_for(group, device_types):
    """The group's Dispatcher; None where torch cannot call a backend written in Python."""
    return None if _Base is None else Dispatcher(group, device_types)
