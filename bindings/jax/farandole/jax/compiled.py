"""Collectives in functions that JAX compiles: each is a call of the native handler.

The calls have no order: XLA starts each as soon as its inputs are there, and ranks match them by name. A token, an
array that each call takes and returns, makes the calls with it run in order.
"""

import jax
import numpy

from ..codes import Kind, Op
from ..world import member_names
from . import native

# Operations whose result has the input's shape work on a batch as on a tensor of one more dimension.
_KEEPS_SHAPE = {Kind.ALLREDUCE: "broadcast_all", Kind.BROADCAST: "broadcast_all"}


def make_token():
    """A token to order calls with: pass it to the first call, and the token that each call returns to the next one."""
    return jax.numpy.zeros((), numpy.int32)


def full_name(group, operation, name):
    """The name of a call: the caller's, or the number of unnamed calls of the operation that were traced so far."""
    if name is not None:
        if "\0" in name:
            raise ValueError(f"name={name!r} contains the character 0")
        return f"{operation}.{name}"
    return f"{operation}.jit.{native.next_count(native.number_of(group), operation)}"


def call(kind, group, operation, name, arrays, shapes, token=None, *, op=Op.SUM, root=0, prescale=1.0, postscale=1.0,
         splits=(), priority=0):  # fmt: skip
    """One unit of operations on arrays. Returns the list of results, which have `shapes`, and the token or None."""
    native.register()
    base = full_name(group, operation, name)
    names = [base] if len(arrays) == 1 else member_names(base, len(arrays))
    results = [jax.ShapeDtypeStruct(shape, array.dtype) for shape, array in zip(shapes, arrays)]
    tokens = () if token is None else (token,)
    results += [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in tokens]
    function = jax.ffi.ffi_call(native.TARGET, results, vmap_method=_KEEPS_SHAPE.get(kind, "sequential"))
    made = list(
        function(
            *arrays,
            *tokens,
            names="".join(one + "\0" for one in names),
            group=numpy.int64(native.number_of(group)),
            kind=numpy.int32(kind),
            op=numpy.int32(op),
            root=numpy.int32(root),
            prescale=numpy.float64(prescale),
            postscale=numpy.float64(postscale),
            priority=numpy.int32(priority),
            splits=numpy.array(splits, numpy.int64),
            tokens=numpy.int32(len(tokens)),
        )
    )
    return (made[:-1], made[-1]) if tokens else (made, None)
