"""farandole.jax: training with optax, broadcasts of states, and objects."""

import sys

import farandole
import farandole.jax as hvd
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from arrays_of_ranks import mine, same, total
from expect import fails
from launch import checks_of, require


def data(seed=0, count=24):
    """Inputs and targets of all ranks together: small integers, so that sums are exact where the order differs."""
    random = np.random.RandomState(seed)
    return random.randint(-3, 4, (count, 4)).astype("float32"), random.randint(-3, 4, (count, 1)).astype("float32")


def shard(arrays):
    return [array[hvd.rank() :: hvd.size()] for array in arrays]


def start():
    return {"w": jnp.full((4, 1), 0.5), "b": jnp.zeros(1)}


def loss(params, x, y):
    return ((x @ params["w"] + params["b"] - y) ** 2).mean()


def trained(optimizer, arrays, steps=6, compiled=True):
    params, state = start(), optimizer.init(start())

    def step(params, state, x, y):
        updates, state = optimizer.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step) if compiled else step
    for _ in range(steps):
        params, state = step(params, state, *arrays)
    return params


def close(result, expected, tolerance=1e-5):
    for one, other in zip(jax.tree_util.tree_leaves(result), jax.tree_util.tree_leaves(expected)):
        assert np.abs(np.asarray(one) - np.asarray(other)).max() <= tolerance, (result, expected)


def equal_on_all_ranks(tree):
    everywhere = hvd.allgather_object(jax.tree_util.tree_map(np.asarray, tree))
    for others in everywhere:
        jax.tree_util.tree_map(np.testing.assert_array_equal, others, everywhere[0])


def check_equals_one_process_on_the_joint_batch():
    hvd.init()
    clipped = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1))
    for optimizer, compiled in ((optax.sgd(0.05), False), (optax.adam(0.1), True), (clipped, True)):
        params = trained(hvd.distributed_optimizer(optimizer), shard(data()), compiled=compiled)
        close(params, trained(optimizer, data()))
        equal_on_all_ranks(params)


def check_options():
    params = trained(hvd.distributed_optimizer(optax.sgd(0.05), gradient_predivide_factor=2.0), shard(data()))
    close(params, trained(optax.sgd(0.05), data()))
    params = trained(hvd.distributed_optimizer(optax.sgd(0.05 / hvd.size()), op=hvd.Sum), shard(data()))
    close(params, trained(optax.sgd(0.05), data()))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        params = trained(hvd.distributed_optimizer(optax.sgd(0.05), compression=compression), shard(data()))
        close(params, trained(optax.sgd(0.05), data()), 0.1)
        assert params["w"].dtype == jnp.float32
        equal_on_all_ranks(params)
    options = dict(op=hvd.Sum, gradient_predivide_factor=2.0)
    fails(ValueError, "gradient_predivide_factor",
          action=lambda: hvd.distributed_optimizer(optax.sgd(1.0), **options))  # fmt: skip
    fails(ValueError, "backward_passes_per_step",
          action=lambda: hvd.distributed_optimizer(optax.sgd(1.0), backward_passes_per_step=0))  # fmt: skip


def check_several_passes_for_each_update():
    for compiled in (True, False):
        optimizer = hvd.distributed_optimizer(optax.sgd(0.025), backward_passes_per_step=2)
        params = trained(optimizer, shard(data()), steps=12, compiled=compiled)
        close(params, trained(optax.sgd(0.05), data(), steps=6))
        # An odd number of passes leaves the last one out.
        params = trained(optimizer, shard(data()), steps=13, compiled=compiled)
        close(params, trained(optax.sgd(0.05), data(), steps=6))


def check_an_optimizer_with_extra_arguments():
    optimizer = hvd.distributed_optimizer(optax.sgd(0.1))
    state = optimizer.init(start())
    gradients = jax.tree_util.tree_map(lambda one: one * 0 + hvd.rank() + 1, start())
    updates, _ = optimizer.update(gradients, state, start(), value=1.0)
    close(updates, jax.tree_util.tree_map(lambda one: one * 0 - 0.1 * total() / hvd.size(), start()), 1e-6)


def check_broadcast_variables():
    root = hvd.size() - 1
    optimizer = optax.adam(0.1)
    params = {"w": mine((2, 2)), "b": mine((3,), "bfloat16")}
    tree = {"params": params, "state": optimizer.init(mine()), "step": hvd.rank(), "text": f"rank {hvd.rank()}"}
    result = hvd.broadcast_variables(tree, root)
    assert jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(tree)
    same(result["params"]["w"], np.full((2, 2), root + 1.0))
    same(result["params"]["b"], np.full(3, root + 1.0), "bfloat16")
    assert (result["step"], result["text"]) == (root, f"rank {root}")
    fails(farandole.MismatchError, "rank 0 has ['w'] as float32[2]", "rank 1 ['w'] as float32[3]", "same structure",
          action=lambda: hvd.broadcast_variables({"w": jnp.zeros(2 + hvd.rank())}))  # fmt: skip
    fails(farandole.MismatchError, "rank 0 has 1 leaves, rank 1 2",
          action=lambda: hvd.broadcast_variables({name: jnp.zeros(1) for name in "abc"[: 1 + hvd.rank()]}))  # fmt: skip


def check_objects():
    assert hvd.broadcast_object({"epoch": hvd.rank()}, 1) == {"epoch": 1}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    fails(ValueError, "invalid root rank", action=lambda: hvd.broadcast_object(1, hvd.size()))


@pytest.mark.parametrize("size", [3])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_ranks(size, check):
    require(sys.modules[__name__], size, check)
