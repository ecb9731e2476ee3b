"""Deferred tensors: parameters and gradients whose last change is still on its way.

While a tensor is deferred its class is a subclass with __torch_function__. PyTorch calls that method for each function
that is given the tensor, and it lets the change take place before the function runs. The tensor then has its own class
again. torch.compile does not trace this. Code in C++ that gets the tensor without such a function reads the old value,
but for the functions of PyTorch that deferred_readers knows.
"""

import torch

from .deferred_readers import Replacements

_arrivals = {}  # {id of a deferred tensor: the function that lets its change take place and calls restore()}

# They read no elements. zero_grad() and loops over parameters call them.
_READ_NOTHING = {
    torch.Tensor.grad.__get__,
    torch.Tensor.grad.__set__,
    torch.Tensor.grad.__delete__,
    torch.Tensor.requires_grad.__get__,
}


class _Deferred:
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        return _call_with_values(function, arguments, options or {})


@torch._disable_dynamo
def _call_with_values(function, arguments, options):
    if function in _READ_NOTHING:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **options)
    _arrive(arguments)
    _arrive(options.values())
    return function(*arguments, **options)


class _DeferredParameter(_Deferred, torch.nn.Parameter):
    def __new__(cls, *arguments, **options):
        return torch.nn.Parameter(*arguments, **options)  # copy.deepcopy calls type(parameter)


class _DeferredTensor(_Deferred, torch.Tensor):
    def __new__(cls, *arguments, **options):
        return torch.Tensor(*arguments, **options)


_CLASSES = {torch.nn.Parameter: _DeferredParameter, torch.Tensor: _DeferredTensor}
_ORIGINALS = {deferred: original for original, deferred in _CLASSES.items()}


def can_defer(tensor):
    """Whether the tensor is on the CPU, dense, and of a class that has no __torch_function__ of its own."""
    return type(tensor) in _CLASSES and tensor.is_cpu and tensor.layout is torch.strided


def _references_to_memory(tensor):
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_OF_ONE_TENSOR = _references_to_memory(torch.empty(1))


def has_alias(tensor):
    """Whether another tensor, or an array, uses the memory of this one. Nothing tells who reads it."""
    return _references_to_memory(tensor) > _OF_ONE_TENSOR or tensor.is_shared()


def is_deferred(tensor):
    return type(tensor) in _ORIGINALS


def defer(tensor, arrive):
    """Makes the next function that reads the tensor call `arrive` first, which calls restore()."""
    _arrivals[id(tensor)] = arrive
    _readers.install()
    tensor.__class__ = _CLASSES[type(tensor)]


def restore(tensor):
    if is_deferred(tensor):
        tensor.__class__ = _ORIGINALS[type(tensor)]
        _arrivals.pop(id(tensor), None)
        if not _arrivals:
            _readers.remove()


@torch._disable_dynamo
def arrive_all():
    """Lets all changes take place that are on their way in this process."""
    for arrive in list(_arrivals.values()):
        arrive()


def _arrive(arguments):
    for one in arguments:
        if is_deferred(one):
            _arrivals.get(id(one), lambda one=one: restore(one))()
        elif isinstance(one, (list, tuple)):
            _arrive(one)
        elif isinstance(one, dict):
            _arrive(one.values())


_readers = Replacements(_arrive, arrive_all, is_needed=lambda: bool(_arrivals))
