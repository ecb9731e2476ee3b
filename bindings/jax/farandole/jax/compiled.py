"""Collectives in functions that JAX compiles: each is a call of the native handler.

The calls have no order: XLA starts each as soon as its inputs are there, and ranks match them by name. A token, an
array that each call takes and returns, makes the calls with it run in order.
"""

import jax
import jaxlib
import numpy

from .. import errors
from ..codes import Kind
from ..world import member_names
from . import names, native
from .direct import horovod_errors
from .versions import numbers

# Operations whose result has the input's shape work on a batch as on a tensor of one more dimension.
_KEEPS_SHAPE = {Kind.ALLREDUCE: "broadcast_all", Kind.BROADCAST: "broadcast_all"}


def make_token():
    """A token, which orders calls in a compiled function: pass it to the first call as `token`.

    Each call with a token also returns one, for the next call.
    """
    return jax.numpy.zeros((), numpy.int32)


def refuse_distributed():
    """UnsupportedError if jax.distributed has joined this process with others."""
    if jax.process_count() > 1:
        raise errors.UnsupportedError(
            f"jax.distributed joins {jax.process_count()} processes, and XLA compiles one program for all of them, in "
            "which farandole's calls would reduce what is shared already; use jax.lax.psum and its like in that "
            "program, or leave out jax.distributed.initialize()"
        )


def refuse_unknown_devices():
    """UnsupportedError if a call could not find out on which device of this process it runs."""
    count = jax.local_device_count("cpu")
    if count > 1 and numbers(jaxlib.__version__) < (0, 6):
        raise errors.UnsupportedError(
            f"this process has {count} devices, and jaxlib {jaxlib.__version__} does not tell a call its device; "
            "install JAX 0.6 or newer, or use one device"
        )


def call(kind, process_set, operation, name, arrays, shapes, token=None, *, op, root=0, prescale=1.0, postscale=1.0,
         splits=None, keep=False):  # fmt: skip
    """One unit of operations on arrays. Returns the list of results, which have `shapes`, and the token or None.

    XLA drops a call whose results are not used, unless `keep`, which makes each execution of the function slower.
    """
    with horovod_errors():
        refuse_distributed()
        refuse_unknown_devices()
        native.register()
    number = native.number_of(process_set)
    base = names.full_name(number, operation, name)
    all_names = [base] if len(arrays) == 1 else member_names(base, len(arrays))
    results = [jax.ShapeDtypeStruct(shape, array.dtype) for shape, array in zip(shapes, arrays)]
    tokens = () if token is None else (token,)
    results += [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in tokens]
    function = jax.ffi.ffi_call(
        native.TARGET, results, vmap_method=_KEEPS_SHAPE.get(kind, "sequential"), has_side_effect=keep
    )
    made = list(
        function(
            *arrays,
            *tokens,
            names="".join(one + "\0" for one in all_names),
            group=numpy.int64(number),
            kind=numpy.int32(kind),
            op=numpy.int32(op),
            root=numpy.int32(root),
            prescale=numpy.float64(prescale),
            postscale=numpy.float64(postscale),
            priority=numpy.int32(0),
            splits=numpy.array(splits or (), numpy.int64),
            tokens=numpy.int32(len(tokens)),
        )
    )
    return (made[:-1], made[-1]) if tokens else (made, None)
