"""farandole.jax in JAX's own forms: scan, cond, vmap, remat, tokens, shard_map, and many calls at once."""

import random
import sys

import farandole
import farandole.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays_of_ranks import FAILURES, mine, same, total
from expect import fails
from launch import checks_of, require


def summed(x, name=None, **options):
    return hvd.allreduce(x, name, hvd.Sum, **options)


def check_scan():
    hvd.init()

    @jax.jit
    def function(x):
        return jax.lax.scan(lambda carry, one: (carry + summed(one), summed(carry)), jnp.zeros(()), x)

    last, seen = function(mine((5,)))
    same(last, 5.0 * total())
    same(seen, np.arange(5.0) * total() * hvd.size())
    # Differentiated, a scan runs the gradient's calls in its own scan.
    gradient = jax.jit(jax.grad(lambda x: function(x)[0] * (hvd.rank() + 1)))(mine((5,)))
    same(gradient, np.full(5, float(total())))


def check_while_and_cond():
    @jax.jit
    def function(x, flag):
        looped = jax.lax.fori_loop(0, 3, lambda _, y: summed(y), x)
        return jax.lax.cond(flag, lambda y: summed(y), lambda y: y, looped)

    same(function(mine(), True), np.full(3, float(total() * hvd.size() ** 3)))
    same(function(mine(), False), np.full(3, float(total() * hvd.size() ** 2)))


def check_vmap():
    batch = jnp.arange(6.0).reshape(3, 2) * (hvd.rank() + 1)
    same(jax.jit(jax.vmap(summed))(batch), np.arange(6.0).reshape(3, 2) * total())
    same(jax.vmap(summed)(batch), np.arange(6.0).reshape(3, 2) * total())
    reduced = jax.jit(jax.vmap(lambda x, y: summed({"x": x, "y": y}), in_axes=(0, None)))(batch, mine(()))
    same(reduced["y"], np.full(3, float(total())))
    gathered = jax.jit(jax.vmap(hvd.allgather))(batch)
    same(gathered, np.concatenate([np.arange(6.0).reshape(3, 2) * (one + 1) for one in range(hvd.size())], axis=1))
    gradient = jax.jit(jax.vmap(jax.grad(lambda x: (summed(x) * (hvd.rank() + 1)).sum())))(batch)
    same(gradient, np.full((3, 2), float(total())))


def check_remat_and_jacobian():
    function = jax.checkpoint(lambda x: jnp.sin(summed(jnp.sin(x))).sum())
    gradient = jax.jit(jax.grad(function))(mine())
    plain = jax.jit(jax.grad(lambda x: jnp.sin(summed(jnp.sin(x))).sum()))(mine())
    assert jnp.allclose(gradient, plain)
    same(jax.jit(jax.jacrev(summed))(mine((2,))), np.eye(2) * hvd.size())


def check_a_token_orders_calls():
    """With one name in all calls, any other order of two of them would fail or mix their values."""
    count = 24

    @jax.jit
    def function(x):
        token, results = hvd.make_token(), []
        for number in range(count):
            result, token = summed(x + number, "ordered", token=token)
            results.append(result)
        return results, token

    for _ in range(5):
        for number, result in enumerate(function(mine((2000,)))[0]):
            same(result, np.full(2000, float(total() + number * hvd.size())))


def check_a_token_keeps_a_call_without_a_use():
    @jax.jit
    def function(x):
        _, token = summed(x, "unused", token=hvd.make_token())
        return hvd.allreduce(x, "used", hvd.Sum, token=token)

    same(function(mine())[0], np.full(3, float(total())))


def check_unused_and_equal_calls():
    """Dropped, merged or hoisted: XLA does it alike on all ranks, so nothing waits."""

    @jax.jit
    def function(x):
        summed(x)  # dropped
        invariant = jax.lax.scan(lambda carry, _: (carry + summed(x), None), jnp.zeros(3), None, 3)[0]
        return summed(x, "equal") + summed(x, "equal"), invariant

    doubled, invariant = function(mine())
    same(doubled, np.full(3, 2.0 * total()))
    same(invariant, np.full(3, 3.0 * total()))


def check_many_calls_at_once():
    count = 500

    @jax.jit
    def function(xs):
        return [summed(x, f"many.{number}") for number, x in enumerate(xs)]

    xs = [mine((600,)) + number for number in range(count)]
    for number, result in enumerate(function(xs)):
        same(result, np.full(600, float(total() + number * hvd.size())))


def check_opposite_order_of_independent_calls():
    """Ranks trace the same calls in other orders: names match them, whatever runs first."""
    order = list(range(32))
    random.Random(hvd.rank()).shuffle(order)

    @jax.jit
    def function(xs):
        made = {number: summed(xs[number], f"shuffled.{number}") for number in order}
        return [made[number] for number in range(32)]

    for _ in range(5):
        for number, result in enumerate(function([mine((2000,)) + number for number in range(32)])):
            same(result, np.full(2000, float(total() + number * hvd.size())))


def check_executions_without_waits():
    """Calls of one compiled function whose results the next one does not need."""

    @jax.jit
    def function(p, x):
        return summed(x[0, 0] + 0 * (x @ p).sum(), "evaluation")

    p = jnp.ones((200, 200))
    results = [function(p, jnp.full((200, 200), float(number))) for number in range(100)]
    for number, result in enumerate(results):
        same(result, float(number * hvd.size()))


def check_a_name_that_is_in_flight_already():
    """The first call stays in flight, because the other ranks make it after the program of rank 0 has failed."""
    ones = np.ones(3, np.float32)
    if hvd.rank() == 0:
        first = farandole.allreduce_async(ones, name="twice")
        fails(FAILURES, "'allreduce.twice' is in flight already", "a name of its own",
              action=lambda: jax.block_until_ready(jax.jit(lambda x: summed(x, "twice"))(mine())))  # fmt: skip
    farandole.barrier(name="rank 0 has failed")
    result = first.wait() if hvd.rank() == 0 else farandole.allreduce(ones, name="twice")
    assert np.array_equal(result, np.full(3, hvd.size())), result


def check_compiled_ahead_of_time():
    compiled = jax.jit(summed).lower(mine()).compile()
    same(compiled(mine()), np.full(3, float(total())))


def check_donated_arguments():
    function = jax.jit(lambda x: summed(x) + 1, donate_argnums=0)
    for _ in range(3):
        same(function(mine((1000,))), np.full(1000, total() + 1.0))


@pytest.mark.parametrize("size", [3])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_ranks(size, check):
    require(sys.modules[__name__], size, check)
