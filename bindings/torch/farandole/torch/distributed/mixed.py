"""Groups with one backend for each device type: init_process_group("cpu:farandole,cuda:nccl").

torch keeps a C++ backend for each device type of a group. A backend written in Python replaces the whole group instead.
This group therefore keeps the other backends in a plain group, and forwards their calls to it.
"""

import sys

import torch
import torch.distributed as dist

from ... import errors
from .dispatched import OLD_NAMES, OPERATIONS
from .process_group import ProcessGroup
from .work import as_torch

_MAKES_GROUPS = "_new_process_group_helper"  # torch's function, which calls create()


def being_made():
    """(torch's plain group, {device type: backend}) of the group that torch creates now; (None, {}) for a single
    backend.

    torch passes neither of them to a backend. They are local variables of the function that calls it.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _MAKES_GROUPS:
        frame = frame.f_back
    config = None if frame is None else frame.f_locals.get("backend_config")
    if config is None:
        return None, {}
    backends = {device: str(name) for device, name in config.get_device_backend_map().items()}
    return (frame.f_locals["pg"], backends) if set(backends.values()) != {"farandole"} else (None, {})


def _refusal(text):
    return as_torch(errors.UnsupportedError(text))


def _gloo(store, options, _):
    return dist.ProcessGroupGloo(store, options.group_rank, options.group_size, options.timeout)


def _nccl(store, options, backend_options):
    if not dist.is_nccl_available():
        raise _refusal("this build of PyTorch has no NCCL; use backend='farandole' for all devices")
    wanted = (
        backend_options
        if isinstance(backend_options, dist.ProcessGroupNCCL.Options)
        else dist.ProcessGroupNCCL.Options()
    )
    wanted._timeout = options.timeout
    wanted.global_ranks_in_group = list(options.global_ranks_in_group)
    wanted.group_name = str(options.group_id)
    return dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, wanted)


_MAKERS = {"gloo": _gloo, "nccl": _nccl}


def complete(plain, backends, options, backend_options):
    """Adds the backends to the plain group that torch has not created, because torch stops at this one."""
    there = {device.type for device in plain._device_types}
    for device, name in backends.items():
        if name == "farandole" or device in there:
            continue
        if name not in _MAKERS:
            raise _refusal(
                f"init_process_group: '{device}:{name}' cannot be combined with farandole, only gloo and nccl can; "
                f"create a separate group for it: torch.distributed.new_group(backend='{name}')"
            )
        store = dist.PrefixStore(f"farandole/{device}/", options.store)
        kind = dist.ProcessGroup.BackendType.__members__[name.upper()]
        plain._register_backend(torch.device(device), kind, _MAKERS[name](store, options, backend_options))
        plain._set_default_backend(kind)


def _device_type_of(arguments):
    """The device type of the first tensor, device or options object in `arguments`; None if there is none."""
    for one in arguments:
        if isinstance(one, torch.Tensor):
            return one.device.type
        if isinstance(one, torch.device):
            return one.type
        if isinstance(one, (list, tuple)):
            found = _device_type_of(one)
        else:
            device = getattr(one, "device", None)
            found = None if device is None else device.type
        if found is not None:
            return found
    return None


class MixedProcessGroup(ProcessGroup):
    """A group with several backends.

    `backends`: {device type: name}. `plain`: torch's group, with all backends except farandole.
    """

    def __init__(self, *arguments, plain, backends):
        self._plain = plain
        self._backends = backends
        super().__init__(*arguments)

    def _is_other_backend(self, device_type):
        return self._backends.get(device_type, "farandole") != "farandole"

    def _own_device_types(self):
        return [device for device, name in self._backends.items() if name == "farandole"]

    def _get_backend(self, device=None):
        return self._plain._get_backend(device) if device is not None and self._is_other_backend(device.type) else self

    @property
    def _device_types(self):
        return [torch.device(one) for one in self._backends]

    @property
    def supports_splitting(self):
        return False

    def splitGroup(self, *_, **__):
        raise _refusal(
            "split_group: a group with several backends cannot be split; call torch.distributed.new_group(ranks)"
        )

    split_group = splitGroup

    def setGroupName(self, name):
        super().setGroupName(name)
        self._plain._set_group_name(name)

    def setGroupDesc(self, desc):
        super().setGroupDesc(desc)
        self._plain._set_group_desc(desc)

    def set_timeout(self, timeout):
        super().set_timeout(timeout)
        if hasattr(self._plain, "set_timeout"):  # PyTorch 2.6 and later
            self._plain.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self):
        self._plain.abort()
        super().abort()

    def shutdown(self):
        self._plain.shutdown()
        super().shutdown()


def _forwarding(name):
    ours = getattr(ProcessGroup, name)

    def call(self, *arguments, **options):
        if self._is_other_backend(_device_type_of((*arguments, *options.values()))):
            return getattr(self._plain, name)(*arguments, **options)
        return ours(self, *arguments, **options)

    call.__name__ = call.__qualname__ = name
    return call


_OTHER_NAMES = ("_allgather_base", "_reduce_scatter_base", "recvAnysource", "_start_coalescing", "_end_coalescing")
for _name in (*OPERATIONS, *OLD_NAMES, *_OTHER_NAMES):
    setattr(MixedProcessGroup, _name, _forwarding(_name))
