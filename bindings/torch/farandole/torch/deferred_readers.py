"""Functions of PyTorch that read a tensor without calling its __torch_function__.

While tensors are deferred, a function stands in the place of each that first lets the changes take place.
"""

import functools
import sys
import threading

import torch
from torch._functorch import eager_transforms

_ABSENT = object()
_script = torch.jit.script

# They read the tensors among their arguments. A place that a release of PyTorch lacks is left out.
_OF_ARGUMENTS = (
    (torch, "tensor"), (torch, "as_tensor"), (torch, "asarray"), (torch.Tensor, "new_tensor"),
    (torch.nested, "nested_tensor"), (torch.nested, "as_nested_tensor"),
    (torch, "to_dlpack"), (torch.utils.dlpack, "to_dlpack"), (torch._C, "_to_dlpack"),
    (torch.utils, "swap_tensors"),
    # torch.func.grad, vjp, jacrev and functionalize
    (eager_transforms, "_wrap_tensor_for_grad"), (eager_transforms, "_maybe_wrap_functional_tensor"),
    # nn.MultiheadAttention and nn.TransformerEncoder take another path in evaluation if it returns True.
    (torch.overrides, "has_torch_function"),
)  # fmt: skip

# They read tensors that are no arguments, or record the functions that the program calls.
_OF_ALL = (
    (torch._C.ScriptMethod, "__call__"), (torch._C.ScriptFunction, "__call__"),
    (torch.jit, "script"), (torch.jit, "trace"), (torch.jit, "trace_module"), (torch, "compile"),
)  # fmt: skip


class Replacements:
    """The functions in those places. Any thread may call all methods.

    `arrive(values)` and `arrive_all()` let the changes of some tensors, or of all, take place. `is_needed()`: whether a
    tensor is deferred.
    """

    def __init__(self, arrive, arrive_all, is_needed):
        self._arrive = arrive
        self._arrive_all = arrive_all
        self._is_needed = is_needed
        self._lock = threading.Lock()
        self._made = []  # (place, name, what was there, what is there)

    def install(self):
        with self._lock:
            if not self._made:
                for places, before in ((_OF_ARGUMENTS, self._before_reading), (_OF_ALL, self._before_all)):
                    for place, name in places:
                        self._replace(place, name, before)
                self._watch_compiler()

    def remove(self):
        with self._lock:
            if self._is_needed():
                return  # another thread has deferred a tensor
            for place, name, original, replacement in self._made:
                if vars(place).get(name) is not replacement:
                    continue  # the program has replaced it meanwhile
                if original is _ABSENT:
                    delattr(place, name)  # it is inherited
                else:
                    setattr(place, name, original)
            self._made.clear()

    def _replace(self, place, name, before):
        function = getattr(place, name, None)
        if function is None:
            return
        replacement = _preceded(function, before)
        self._made.append((place, name, vars(place).get(name, _ABSENT), replacement))
        setattr(place, name, replacement)

    def _before_reading(self, arguments, options):
        for one in (*arguments, *options.values()):
            if _may_have_tensors(one):
                self._arrive((one,))

    def _before_all(self, arguments, options):
        self._arrive_all()

    def _watch_compiler(self):
        """A function that torch.compile compiles must find ordinary tensors."""
        handler = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
        # torch._dynamo.reset() forgets it.
        if handler is not None and self._on_compile not in handler.start_callbacks:
            handler.register_start_callback(self._on_compile)

    def _on_compile(self, _):
        self._arrive_all()


def _may_have_tensors(one):
    """False for a list that begins with a number, which may be long."""
    while isinstance(one, (list, tuple)) and one:
        one = one[0]
    return isinstance(one, torch.Tensor)


def _preceded(function, before):
    @functools.wraps(function)
    def call(*arguments, **options):
        before(arguments, options)
        if function is _script:  # it looks up names in the frame of its caller
            options["_frames_up"] = options.get("_frames_up", 0) + 1
        return function(*arguments, **options)

    return call
