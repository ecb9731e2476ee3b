"""What the tests of farandole.jax share: inputs of ranks, and comparisons that are exact."""

import farandole.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np

FAILURES = (jax.errors.JaxRuntimeError, ValueError)  # of compiled functions
TYPES = ["uint8", "int8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32"]


def same(result, expected, dtype=None):
    """Asserts equal type, shape and elements."""
    assert isinstance(result, jax.Array), type(result)
    expected = jnp.asarray(expected, dtype or result.dtype)
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert (np.asarray(result) == np.asarray(expected)).all(), (result, expected)


def total():
    """The sum over ranks of rank + 1."""
    return hvd.size() * (hvd.size() + 1) // 2


def mine(shape=(3,), dtype="float32"):
    """This rank's input: all elements are rank + 1."""
    return jnp.full(shape, hvd.rank() + 1, dtype)


def both(function):
    """The function as it is, and compiled."""
    return function, jax.jit(function)
