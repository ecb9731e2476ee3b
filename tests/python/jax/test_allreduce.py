"""farandole.jax: allreduce of arrays and pytrees, compiled and not. Sums are of small integers, so exact."""

import sys

import farandole
import farandole.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays_of_ranks import FAILURES, TYPES, both, mine, same, total
from expect import fails
from launch import checks_of, require


def check_outside_of_compiled_functions():
    hvd.init()
    for dtype in TYPES:
        same(hvd.allreduce(mine((2, 3), dtype), op=hvd.Sum), jnp.full((2, 3), total(), dtype), dtype)
    same(hvd.allreduce(mine()), np.full(3, total() / hvd.size()), "float32")
    same(hvd.allreduce(mine(()), op=hvd.Max), float(hvd.size()))
    same(hvd.allreduce(jnp.zeros((0, 4)), op=hvd.Sum), jnp.zeros((0, 4)))
    same(hvd.allreduce(hvd.rank() + 1, op=hvd.Sum), total())
    for function in both(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)):
        same(function(mine()), np.full(3, 6.0 * total()))
    large = np.arange(100_000) * total()  # results of large arrays are made in another way than small ones
    for function in both(lambda x: hvd.allreduce(x, op=hvd.Sum)):
        same(function(jnp.arange(100_000.0) * (hvd.rank() + 1)), large)
        same(function(np.arange(100_000, dtype="int32") * (hvd.rank() + 1)), large)
    given = mine()
    hvd.allreduce(given, op=hvd.Sum)
    same(given, np.full(3, hvd.rank() + 1.0))  # an input keeps its values


def check_compiled():
    for dtype in TYPES:
        function = jax.jit(lambda x, dtype=dtype: hvd.allreduce(x, f"typed.{dtype}", hvd.Sum))
        for _ in range(3):
            same(function(mine((2, 3), dtype)), jnp.full((2, 3), total(), dtype), dtype)
    same(jax.jit(hvd.allreduce)(mine()), np.full(3, total() / hvd.size()), "float32")
    same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Max))(mine(())), float(hvd.size()))
    same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.zeros((0, 4))), jnp.zeros((0, 4)))


def tree():
    return {"a": mine((2, 2)), "b": [mine((), "int32"), (mine((4,), "bfloat16"), None)]}


def check_pytrees():
    expected = jax.tree_util.tree_map(lambda one: jnp.full(one.shape, total(), one.dtype), tree())
    for function in (lambda x: hvd.allreduce(x, op=hvd.Sum), jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))):
        result = function(tree())
        assert jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(expected)
        jax.tree_util.tree_map(same, result, expected)
    assert hvd.allreduce({}) == {} and hvd.allreduce(None) is None


def check_compiled_and_direct_calls_meet_by_name():
    function = (
        (lambda x: hvd.allreduce(x, "met", hvd.Sum))
        if hvd.rank()
        else jax.jit(lambda x: hvd.allreduce(x, "met", hvd.Sum))
    )
    same(function(mine()), np.full(3, float(total())))


def check_gradients():
    def loss(x, name):
        return (hvd.allreduce(x, name) * jnp.arange(3.0) * (hvd.rank() + 1)).sum()

    # The gradient is averaged as the tensor was.
    expected = np.arange(3) * total() / hvd.size()
    same(jax.grad(loss)(mine(), "direct"), expected)
    same(jax.jit(jax.grad(lambda x: loss(x, "compiled")))(mine()), expected)
    value, gradient = jax.jit(jax.value_and_grad(lambda x: loss(x, None)))(mine())
    same(gradient, expected)
    same(value, (hvd.rank() + 1) * 3 * total() / hvd.size())

    def mixed(x):
        reduced = hvd.allreduce({"x": x, "n": jnp.array([hvd.rank()])}, op=hvd.Sum)
        return reduced["x"].sum() * reduced["n"][0]

    same(jax.jit(jax.grad(mixed))(mine()), np.full(3, hvd.size() * float(sum(range(hvd.size())))))
    fails(NotImplementedError, "op=Average and op=Sum",
          action=lambda: jax.grad(lambda x: hvd.allreduce(x, op=hvd.Max).sum())(mine()))  # fmt: skip


def check_process_sets():
    global others
    sets = [hvd.add_process_set([rank]) for rank in range(hvd.size())]
    alone, others = sets[hvd.rank()], sets[(hvd.rank() + 1) % hvd.size()]
    same(hvd.allreduce(mine(), process_set=alone), mine())
    same(jax.jit(lambda x: hvd.allreduce(x, process_set=alone))(mine()), mine())
    if hvd.size() > 2:
        pair = hvd.add_process_set([0, 2])
        if hvd.rank() != 1:
            for _ in range(2):
                same(jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=pair))(mine()), np.full(3, 4.0))
        assert hvd.remove_process_set(pair)


def check_arguments():
    fails(ValueError, "op='sum' is not a reduction", action=lambda: hvd.allreduce(mine(), op="sum"))
    fails(ValueError, "not a member of the provided process set",
          action=lambda: hvd.allreduce(mine(), process_set=others))  # fmt: skip
    fails(ValueError, "not a member of the provided process set",
          action=lambda: jax.jit(lambda x: hvd.allreduce(x, process_set=others))(mine()))  # fmt: skip


def check_mismatch_is_reported():
    for function in (lambda x: hvd.allreduce(x, "shapes"), jax.jit(lambda x: hvd.allreduce(x, "shapes"))):
        try:
            jax.block_until_ready(function(jnp.zeros(2 + hvd.rank())))
            raise AssertionError("no error")
        except (hvd.HorovodInternalError, *FAILURES) as error:
            assert "rank 0" in str(error) and "shapes" in str(error), error
            assert isinstance(hvd.error_of(error), farandole.MismatchError), error
    same(jax.jit(lambda x: hvd.allreduce(x, "after", hvd.Sum))(mine()), np.full(3, float(total())))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_ranks(size, check):
    require(sys.modules[__name__], size, check)
