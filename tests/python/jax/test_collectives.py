"""farandole.jax: collectives other than allreduce, in compiled functions and outside, and their gradients."""

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


def rows(counts):
    """The rows of all ranks: counts[rank] rows of rank + 1."""
    return np.concatenate([np.full((count, 2), rank + 1.0) for rank, count in enumerate(counts)])


def check_allgather():
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for function in both(hvd.allgather):
        for dtype in [*TYPES, "bool"]:
            same(function(mine((2, 2), dtype)), rows([2] * size), dtype)
        gathered = function({"a": mine((1, 2)), "b": mine((3, 2), "int32")})
        same(gathered["a"], rows([1] * size))
        same(gathered["b"], rows([3] * size), "int32")
    counts = [1 + 2 * one for one in range(size)]
    same(hvd.allgather(mine((counts[rank], 2))), rows(counts))
    same(jax.jit(lambda x: hvd.allgather(x, total_rows=sum(counts)))(mine((counts[rank], 2))), rows(counts))


def check_a_compiled_allgather_of_other_rows_is_refused():
    function = jax.jit(lambda x: hvd.allgather(x, "uneven"))
    error = fails(FAILURES, "allgather.uneven", "the program was compiled for",
                  action=lambda: function(mine((2 + (hvd.rank() == 0), 2))).block_until_ready())  # fmt: skip
    assert isinstance(hvd.error_of(error), farandole.MismatchError)


def check_broadcast():
    root = hvd.size() - 1
    for function in both(lambda x: hvd.broadcast(x, root)):
        for dtype in [*TYPES, "bool"]:
            same(function(mine((2, 2), dtype)), jnp.full((2, 2), root + 1, dtype), dtype)
        tree = function([mine(()), (mine((0, 3)), mine((5,), "int32"))])
        same(tree[0], root + 1.0)
        same(tree[1][0], jnp.zeros((0, 3)))
        same(tree[1][1], np.full(5, root + 1), "int32")
    fails(ValueError, "invalid root rank", action=lambda: hvd.broadcast(mine(), hvd.size()))


def check_reducescatter():
    size, rank = hvd.size(), hvd.rank()
    for count in (size, 2 * size + 1):
        whole = np.arange(2.0 * count).reshape(count, 2)
        held = [count // size + (one < count % size) for one in range(size)]
        start = sum(held[:rank])
        part = whole[start : start + held[rank]]
        for function in both(lambda x: hvd.reducescatter(x, op=hvd.Sum)):
            same(function(jnp.asarray(whole, "float32") * (rank + 1)), part * total(), "float32")
        for function in both(hvd.reducescatter):
            same(function({"a": jnp.asarray(whole, "float32")})["a"], part, "float32")
    fails(
        hvd.HorovodInternalError, "only supports AVERAGE and SUM", action=lambda: hvd.reducescatter(mine(), op=hvd.Max)
    )


def check_alltoall():
    size, rank = hvd.size(), hvd.rank()
    even = jnp.arange(2 * size) + 100 * rank
    expected = np.concatenate([np.array([2 * rank, 2 * rank + 1]) + 100 * one for one in range(size)])
    for function in both(hvd.alltoall):
        same(function(even), expected, "int32")
    splits = list(range(1, size + 1))  # rank r gets r + 1 rows from each rank
    data = jnp.full((sum(splits) + 1, 2), rank + 1.0)
    received = [rank + 1] * size
    output, counts = hvd.alltoall(data, splits)
    same(output, rows(received))
    same(counts, received, "int32")
    for function in both(lambda x: hvd.alltoall(x, splits, received_splits=received)):
        same(function(data), rows(received))
    fails(ValueError, "not divisible by the number of workers", action=lambda: hvd.alltoall(jnp.zeros(size + 1)))
    fails(ValueError, "Sum of splits entries", action=lambda: hvd.alltoall(jnp.zeros(1), splits))
    fails(ValueError, "splits=[1]", action=lambda: hvd.alltoall(jnp.zeros(9), [1]))
    fails(ValueError, "needs received_splits", action=lambda: jax.jit(lambda x: hvd.alltoall(x, splits))(data))


def check_scalars_have_no_rows():
    for function in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
        fails(ValueError, "no rows", action=lambda function=function: function(jnp.zeros(())))


def check_gradients():
    size, rank = hvd.size(), hvd.rank()
    weights = (jnp.arange(2.0 * size) + 1) * (rank + 1)  # of the loss; the sum over ranks is total() times the first

    def both_gradients(function, x):
        loss = lambda x: (function(x) * weights[: function_rows(function, x)]).sum()  # noqa: E731
        return jax.grad(loss)(x), jax.jit(jax.grad(loss))(x)

    def function_rows(function, x):
        return jax.eval_shape(function, x).shape[0]

    summed = (np.arange(2.0 * size) + 1) * total()
    for gradient in both_gradients(lambda x: hvd.allgather(x, "g"), jnp.ones(2)):
        same(gradient, summed[2 * rank : 2 * rank + 2] / size)
    for gradient in both_gradients(lambda x: hvd.broadcast(x, 0), jnp.ones(2)):
        same(gradient, summed[:2] / size if rank == 0 else np.zeros(2))
    for gradient in both_gradients(lambda x: hvd.reducescatter(x, "rs", hvd.Sum), jnp.ones(2 * size)):
        same(gradient, np.concatenate([np.array([1.0, 2.0]) * (one + 1) for one in range(size)]) * size)
    for gradient in both_gradients(hvd.reducescatter, jnp.ones(size)):
        same(gradient, np.arange(size) + 1.0)
    for gradient in both_gradients(hvd.alltoall, jnp.ones(size)):
        same(gradient, np.array([(rank + 1.0) * (one + 1) for one in range(size)]))
    splits, received = [1] * size, [1] * size
    for gradient in both_gradients(lambda x: hvd.alltoall(x, splits, received_splits=received), jnp.ones(size + 2)):
        same(gradient, np.array([(rank + 1.0) * (one + 1) for one in range(size)] + [0, 0]))


def check_gradient_of_an_uneven_allgather():
    counts = [1 + one for one in range(hvd.size())]
    weights = jnp.arange(1.0 * sum(counts))
    gradient = jax.grad(lambda x: (hvd.allgather(x) * weights).sum())(jnp.ones(counts[hvd.rank()]))
    start = sum(counts[: hvd.rank()])
    same(gradient, np.arange(start, start + counts[hvd.rank()]))


def check_barrier_and_join():
    hvd.barrier()
    fails(ValueError, "needs token=make_token()", action=lambda: jax.jit(lambda: hvd.barrier())())

    @jax.jit
    def function(x):
        token = hvd.barrier(token=hvd.make_token())
        reduced, token = hvd.allreduce(x, "behind", hvd.Sum, token=token)
        return reduced, hvd.barrier(token=token)

    same(function(mine())[0], np.full(3, float(total())))
    fails(ValueError, "outside of compiled functions", action=lambda: jax.jit(hvd.join)())
    if hvd.rank():  # the others have more data than rank 0
        same(hvd.allreduce(mine(), "late", hvd.Sum), np.full(3, total() - 1.0))
        same(jax.jit(lambda x: hvd.allreduce(x, "later", hvd.Sum))(mine()), np.full(3, total() - 1.0))
    assert hvd.join() in range(hvd.size())


@pytest.mark.parametrize("size", [3])
@pytest.mark.parametrize("check", checks_of(sys.modules[__name__]))
def test_ranks(size, check):
    require(sys.modules[__name__], size, check)
