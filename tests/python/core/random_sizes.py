"""A random caller of every collective. Between correct calls, whose results are compared with ==, each rank makes calls
whose sizes are wrong. Each of those must raise before anything is sent or written, so the correct calls must still
match.

check_random_calls runs on each rank of a job: RANDOM_SIZES_CALLS, RANDOM_SIZES_SEED and RANDOM_SIZES_PORT (of the store
of torch.distributed) are its arguments.
"""

import os
import random

import farandole as fdl
import numpy as np

DTYPES = ["uint8", "int16", "int32", "int64", "float32", "float64"]
UNTOUCHED = 77


class Call:
    """One collective with valid arguments, and functions that make this rank's arguments invalid.

    `arguments`: of the call. `expected`: what `result` must be, None where this rank gets nothing. `wrong`: functions
    that change a copy of the arguments so that this rank's call must be rejected."""

    def __init__(self, arguments, expected, wrong):
        self.arguments = arguments
        self.expected = expected
        self.wrong = wrong


def data(rank, count, dtype):
    return ((np.arange(count) + 3 * rank) % 5).astype(dtype)


def zeros_of(count, dtype):
    return np.full(count, UNTOUCHED, dtype)


def other_count(rng, count):
    choices = [count + 1, count + rng.randrange(1, 50), count * 2 + 1, count + 4096]
    if count > 0:
        choices += [count - 1, count // 2, 0]
    return rng.choice([one for one in choices if one != count])


# ---- Ways to be wrong: each takes a random generator and the arguments, and returns other arguments
# --------------------


def resized(key):
    def change(rng, arguments):
        array = arguments[key]
        return {**arguments, key: np.full(other_count(rng, array.size), UNTOUCHED, array.dtype)}

    return change


def of_another_type(key):
    def change(rng, arguments):
        array = arguments[key]
        dtype = rng.choice([one for one in DTYPES if one != array.dtype.name])
        return {**arguments, key: np.full(array.size, UNTOUCHED, dtype)}

    return change


def not_contiguous(key):
    def change(rng, arguments):
        array = arguments[key]
        return {**arguments, key: np.full(2 * max(array.size, 2), UNTOUCHED, array.dtype)[::2]}

    return change


def read_only(key):
    def change(rng, arguments):
        array = arguments[key].copy()
        array.flags.writeable = False
        return {**arguments, key: array}

    return change


def overlapping(rng, arguments):
    """Input and output overlap in part; the sizes are valid."""
    tensor, out = arguments["tensor"], arguments["out"]
    if min(tensor.size, out.size) < 2:
        return resized("out")(rng, arguments)
    base = np.full(tensor.size + out.size, UNTOUCHED, tensor.dtype)
    shift = 1 if tensor.size >= out.size else out.size - tensor.size + 1  # no part is at the place of a rank's own part
    if tensor.size >= out.size:
        return {**arguments, "tensor": base[shift : shift + tensor.size], "out": base[: out.size]}
    return {**arguments, "tensor": base[shift : shift + tensor.size], "out": base[: out.size]}


def wrong_counts(key):
    def change(rng, arguments):
        counts = list(arguments[key])
        kind = rng.randrange(4)
        if kind == 0:
            counts = counts[:-1]
        elif kind == 1:
            counts = counts + [rng.randrange(3)] * rng.randrange(1, 4)
        elif kind == 2:
            counts[rng.randrange(len(counts))] = -rng.randrange(1, 1 << 40)
        else:
            counts = [count + rng.randrange(1, 100) for count in counts]
        return {**arguments, key: counts}

    return change


def no_such_root(rng, arguments):
    return {**arguments, "root": rng.choice([-1, fdl.size(), 1 << 20])}


# ---- Correct calls
# ----------------------------------------------------------------------------------------------------- Each takes the
# generator that all ranks share, this rank and the number of ranks.


def pick(shared):
    return shared.choice([1, 2, 3, 7, 64, 1000, 5000]), shared.choice(DTYPES)


def a_sum(shared, rank, size):
    count, dtype = pick(shared)
    total = sum(data(one, count, dtype) for one in range(size))
    arguments = {"tensor": data(rank, count, dtype), "out": zeros_of(count, dtype)}
    wrong = [
        resized("out"),
        resized("tensor"),
        of_another_type("out"),
        not_contiguous("out"),
        read_only("out"),
        overlapping,
    ]
    return Call(arguments, total, wrong)


def a_sum_at_root(shared, rank, size):
    call, root = a_sum(shared, rank, size), shared.randrange(size)
    call.arguments["root"] = root
    if rank != root:
        call.expected, call.wrong = None, []
    call.wrong.append(no_such_root)
    return call


def a_broadcast(shared, rank, size):
    count, dtype = pick(shared)
    root = shared.randrange(size)
    arguments = {"tensor": data(rank, count, dtype), "root": root}
    return Call(arguments, data(root, count, dtype), [no_such_root])


def an_allgather(shared, rank, size):
    count, dtype = pick(shared)
    arguments = {"tensor": data(rank, count, dtype), "out": zeros_of(count * size, dtype)}
    expected = np.concatenate([data(one, count, dtype) for one in range(size)])
    return Call(
        arguments,
        expected,
        [
            resized("out"),
            resized("tensor"),
            of_another_type("out"),
            not_contiguous("out"),
            read_only("out"),
            overlapping,
        ],
    )


def an_allgather_with_counts(shared, rank, size):
    _, dtype = pick(shared)
    counts = [shared.choice([0, 1, 5, 300]) for _ in range(size)]
    arguments = {"tensor": data(rank, counts[rank], dtype), "out": zeros_of(sum(counts), dtype), "counts": counts}
    expected = np.concatenate([data(one, counts[one], dtype) for one in range(size)])
    return Call(
        arguments, expected, [resized("out"), resized("tensor"), wrong_counts("counts"), of_another_type("out")]
    )


def a_reduce_scatter(shared, rank, size):
    count, dtype = pick(shared)
    total = sum(data(one, count * size, dtype) for one in range(size))
    arguments = {"tensor": data(rank, count * size, dtype), "out": zeros_of(count, dtype)}
    return Call(arguments, total[rank * count : (rank + 1) * count],
                [resized("out"), resized("tensor"), of_another_type("out"), read_only("out"), overlapping])  # fmt: skip


def a_reduce_scatter_with_counts(shared, rank, size):
    _, dtype = pick(shared)
    counts = [shared.choice([0, 1, 5, 300]) for _ in range(size)]
    total = sum(data(one, sum(counts), dtype) for one in range(size))
    start = sum(counts[:rank])
    arguments = {"tensor": data(rank, sum(counts), dtype), "out": zeros_of(counts[rank], dtype), "counts": counts}
    return Call(arguments, total[start : start + counts[rank]],
                [resized("out"), resized("tensor"), wrong_counts("counts")])  # fmt: skip


def an_alltoall(shared, rank, size):
    count, dtype = pick(shared)
    arguments = {"tensor": data(rank, count * size, dtype), "out": zeros_of(count * size, dtype)}
    expected = np.concatenate(
        [data(one, count * size, dtype)[rank * count : (rank + 1) * count] for one in range(size)]
    )
    return Call(arguments, expected, [resized("out"), resized("tensor"), of_another_type("out"), overlapping])


def an_alltoall_with_counts(shared, rank, size):
    _, dtype = pick(shared)
    sent = [[shared.choice([0, 1, 5, 300]) for _ in range(size)] for _ in range(size)]
    received = [sent[one][rank] for one in range(size)]
    arguments = {"tensor": data(rank, sum(sent[rank]), dtype), "out": zeros_of(sum(received), dtype),
                 "send_counts": sent[rank], "recv_counts": received}  # fmt: skip
    parts = []
    for one in range(size):
        start = sum(sent[one][:rank])
        parts.append(data(one, sum(sent[one]), dtype)[start : start + sent[one][rank]])
    return Call(
        arguments,
        np.concatenate(parts),
        [resized("out"), resized("tensor"), wrong_counts("send_counts"), wrong_counts("recv_counts")],
    )


def a_gather(shared, rank, size):
    count, dtype = pick(shared)
    root = shared.randrange(size)
    arguments = {"tensor": data(rank, count, dtype), "out": zeros_of(count * size, dtype), "root": root}
    if rank != root:
        return Call(arguments, None, [no_such_root])
    expected = np.concatenate([data(one, count, dtype) for one in range(size)])
    return Call(
        arguments, expected, [resized("out"), resized("tensor"), of_another_type("out"), overlapping, no_such_root]
    )


def a_scatter(shared, rank, size):
    count, dtype = pick(shared)
    root = shared.randrange(size)
    arguments = {"tensor": data(root, count * size, dtype), "out": zeros_of(count, dtype), "root": root}
    wrong = [read_only("out"), not_contiguous("out"), no_such_root]
    if rank == root:
        wrong += [resized("out"), resized("tensor"), of_another_type("out"), overlapping]
    return Call(arguments, data(root, count * size, dtype)[rank * count : (rank + 1) * count], wrong)


ORDERED = {
    "allreduce": a_sum,
    "reduce": a_sum_at_root,
    "broadcast": a_broadcast,
    "allgather": an_allgather,
    "allgather, counts": an_allgather_with_counts,
    "reduce_scatter": a_reduce_scatter,
    "reduce_scatter, counts": a_reduce_scatter_with_counts,
    "alltoall": an_alltoall,
    "alltoall, counts": an_alltoall_with_counts,
    "gather": a_gather,
    "scatter": a_scatter,
}


def a_named_broadcast(shared, rank, size):
    call = a_broadcast(shared, rank, size)
    call.arguments["out"] = zeros_of(call.arguments["tensor"].size, call.arguments["tensor"].dtype)
    call.wrong += [resized("out"), of_another_type("out"), overlapping]
    return call


def a_named_alltoall(shared, rank, size):
    _, dtype = pick(shared)
    sent = [[shared.choice([0, 1, 5, 300]) for _ in range(size)] for _ in range(size)]
    arguments = {"tensor": data(rank, sum(sent[rank]), dtype), "splits": sent[rank]}
    parts = []
    for one in range(size):
        start = sum(sent[one][:rank])
        parts.append(data(one, sum(sent[one]), dtype)[start : start + sent[one][rank]])
    return Call(arguments, np.concatenate(parts), [wrong_counts("splits")])


NAMED = {"allreduce": a_sum, "broadcast": a_named_broadcast, "alltoall": a_named_alltoall}


# ---- The caller
# --------------------------------------------------------------------------------------------------------


class Caller:
    def __init__(self, seed):
        self.shared = random.Random(seed)
        self.own = random.Random(f"{seed} {fdl.rank()}")
        self.comm = fdl.Communicator()
        self.calls = self.refusals = 0

    def ordered(self):
        name, make = self.shared.choice(list(ORDERED.items()))
        call = make(self.shared, fdl.rank(), fdl.size())
        blocking = self.shared.random() < 0.5
        method = getattr(self.comm, name.partition(",")[0] if blocking else "i" + name.partition(",")[0])
        self.refused(f"ordered {name}", call, lambda arguments: method(**arguments))
        result = method(**call.arguments)
        self.compare(f"ordered {name}", call, result if blocking else result.wait())

    def named(self):
        name, make = self.shared.choice(list(NAMED.items()))
        call = make(self.shared, fdl.rank(), fdl.size())
        self.refused(f"named {name}", call, lambda arguments: getattr(fdl, name)(**arguments))
        result = getattr(fdl, name)(**call.arguments)
        self.compare(f"named {name}", call, result[0] if name == "alltoall" else result)

    def refused(self, what, call, run):
        for _ in range(self.own.randrange(3)):
            change = self.own.choice(call.wrong)
            arguments = change(self.own, call.arguments)
            before = {key: value.copy() for key, value in arguments.items() if isinstance(value, np.ndarray)}
            try:
                run(arguments)
            except fdl.InvalidArgumentError:
                self.refusals += 1
            else:
                raise AssertionError(f"{what} was not refused: {change.__qualname__} {shape_of(arguments)}")
            for key, value in before.items():
                assert (arguments[key] == value).all(), f"{what} has written to {key} although it was refused"

    def compare(self, what, call, result):
        self.calls += 1
        if call.expected is None:
            return
        assert result is not None and (np.asarray(result).reshape(-1) == call.expected).all(), (
            f"{what}: {result} and not {call.expected}"
        )


def shape_of(arguments):
    return {key: f"{value.dtype}[{value.size}]" if isinstance(value, np.ndarray) else value
            for key, value in arguments.items()}  # fmt: skip


def run(calls, seed):
    fdl.init()
    caller = Caller(seed)
    for number in range(calls):
        try:
            caller.named() if caller.shared.random() < 0.3 else caller.ordered()
        except Exception as error:
            raise AssertionError(f"seed {seed}, call {number}: {type(error).__name__}: {error}") from error
    counts = caller.calls, caller.refusals
    caller.comm.free()
    return counts


def check_random_calls():
    """One rank of a job. Prints the numbers of its correct and of its rejected calls."""
    calls, seed = int(os.environ["RANDOM_SIZES_CALLS"]), os.environ["RANDOM_SIZES_SEED"]
    counts = run(calls, seed)
    fdl.shutdown()
    import random_sizes_torch

    more = random_sizes_torch.run(calls, seed)
    print(counts[0] + more[0], counts[1] + more[1])
