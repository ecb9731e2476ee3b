"""The random caller's part for torch.distributed: torch or the process group rejects wrong sizes before anything is
sent, and correct calls give exact results. See random_sizes.py."""

import os
import random

import torch
import torch.distributed as dist

DTYPES = [torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16]


def data(rank, count, dtype):
    return ((torch.arange(count) + 3 * rank) % 5).to(dtype)


def other_count(rng, count):
    return rng.choice([one for one in (count + 1, count * 2 + 3, count + 4096, count // 2, 0) if one != count])


class Caller:
    def __init__(self, seed):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.shared = random.Random(f"torch {seed}")
        self.own = random.Random(f"torch {seed} {self.rank}")
        self.calls = self.refusals = 0

    def pick(self):
        return self.shared.choice([1, 2, 7, 64, 1000, 5000]), self.shared.choice(DTYPES)

    def refuse(self, what, action):
        if self.own.random() < 0.4:
            return
        try:
            action()
        except (ValueError, RuntimeError, TypeError):
            self.refusals += 1
        else:
            raise AssertionError(f"{what} was not refused")

    def same(self, what, result, expected):
        self.calls += 1
        assert torch.equal(result, expected), f"{what}: {result} and not {expected}"

    def wrong(self, count, dtype):
        return torch.full((other_count(self.own, count),), 77, dtype=dtype)

    def all_gather_into_tensor(self):
        count, dtype = self.pick()
        mine, out = data(self.rank, count, dtype), torch.empty(count * self.size, dtype=dtype)
        self.refuse("out", lambda: dist.all_gather_into_tensor(self.wrong(count * self.size, dtype), mine))
        self.refuse("input", lambda: dist.all_gather_into_tensor(out, self.wrong(count, dtype)))
        self.refuse("type", lambda: dist.all_gather_into_tensor(out.to(torch.int16), mine))
        dist.all_gather_into_tensor(out, mine)
        self.same("all_gather_into_tensor", out, torch.cat([data(one, count, dtype) for one in range(self.size)]))

    def all_gather(self):
        count, dtype = self.pick()
        mine, outs = data(self.rank, count, dtype), [torch.empty(count, dtype=dtype) for _ in range(self.size)]
        self.refuse("too few", lambda: dist.all_gather(outs[:-1], mine))
        self.refuse("too many", lambda: dist.all_gather([*outs, outs[0].clone()], mine))
        self.refuse("own place", lambda: dist.all_gather([self.wrong(count, dtype)] * self.size, mine))
        dist.all_gather(outs, mine)
        self.same("all_gather", torch.cat(outs), torch.cat([data(one, count, dtype) for one in range(self.size)]))

    def reduce_scatter_tensor(self):
        count, dtype = self.pick()
        mine, out = data(self.rank, count * self.size, dtype), torch.empty(count, dtype=dtype)
        self.refuse("out", lambda: dist.reduce_scatter_tensor(self.wrong(count, dtype), mine))
        self.refuse("input", lambda: dist.reduce_scatter_tensor(out, self.wrong(count * self.size, dtype)))
        dist.reduce_scatter_tensor(out, mine)
        total = sum(data(one, count * self.size, dtype) for one in range(self.size))
        self.same("reduce_scatter_tensor", out, total[self.rank * count : (self.rank + 1) * count])

    def reduce_scatter(self):
        count, dtype = self.pick()
        mine, out = list(data(self.rank, count * self.size, dtype).split(count)), torch.empty(count, dtype=dtype)
        self.refuse("too few", lambda: dist.reduce_scatter(out, mine[:-1]))
        self.refuse("out", lambda: dist.reduce_scatter(self.wrong(count, dtype), mine))
        dist.reduce_scatter(out, mine)
        total = sum(data(one, count * self.size, dtype) for one in range(self.size))
        self.same("reduce_scatter", out, total[self.rank * count : (self.rank + 1) * count])

    def all_to_all_single(self):
        _, dtype = self.pick()
        sent = [[self.shared.choice([0, 1, 5, 300]) for _ in range(self.size)] for _ in range(self.size)]
        received = [sent[one][self.rank] for one in range(self.size)]
        mine, out = data(self.rank, sum(sent[self.rank]), dtype), torch.empty(sum(received), dtype=dtype)

        def call(output=out, tensor=mine, output_splits=received, input_splits=sent[self.rank]):
            dist.all_to_all_single(output, tensor, output_splits, input_splits)

        self.refuse("out", lambda: call(output=self.wrong(out.numel(), dtype)))
        self.refuse("input", lambda: call(tensor=self.wrong(mine.numel(), dtype)))
        self.refuse("splits", lambda: call(input_splits=[one + 1 for one in sent[self.rank]]))
        self.refuse("length", lambda: call(output_splits=[*received, 0]))
        self.refuse("negative", lambda: call(input_splits=[-3, mine.numel() + 3, *[0] * (self.size - 2)]))
        call()
        parts = [data(one, sum(sent[one]), dtype).split(sent[one])[self.rank] for one in range(self.size)]
        self.same("all_to_all_single", out, torch.cat(parts))

    def all_to_all(self):
        count, dtype = self.pick()
        mine = list(data(self.rank, count * self.size, dtype).split(count))
        outs = [torch.empty(count, dtype=dtype) for _ in range(self.size)]
        self.refuse("too few", lambda: dist.all_to_all(outs[:-1], mine))
        self.refuse("too many", lambda: dist.all_to_all(outs, [*mine, mine[0]]))
        dist.all_to_all(outs, mine)
        parts = [data(one, count * self.size, dtype).split(count)[self.rank] for one in range(self.size)]
        self.same("all_to_all", torch.cat(outs), torch.cat(parts))

    def gather(self):
        count, dtype = self.pick()
        root = self.shared.randrange(self.size)
        mine = data(self.rank, count, dtype)
        outs = [torch.empty(count, dtype=dtype) for _ in range(self.size)] if self.rank == root else None
        if outs:
            self.refuse("too few", lambda: dist.gather(mine, outs[:-1], root))
            self.refuse("sizes", lambda: dist.gather(mine, [self.wrong(count, dtype)] * self.size, root))
        dist.gather(mine, outs, root)
        if outs:
            self.same("gather", torch.cat(outs), torch.cat([data(one, count, dtype) for one in range(self.size)]))

    def scatter(self):
        count, dtype = self.pick()
        root = self.shared.randrange(self.size)
        out = torch.empty(count, dtype=dtype)
        parts = list(data(root, count * self.size, dtype).split(count)) if self.rank == root else None
        if parts:
            self.refuse("too few", lambda: dist.scatter(out, parts[:-1], root))
            self.refuse("out", lambda: dist.scatter(self.wrong(count, dtype), parts, root))
        dist.scatter(out, parts, root)
        self.same("scatter", out, data(root, count * self.size, dtype)[self.rank * count : (self.rank + 1) * count])

    def all_reduce(self):
        count, dtype = self.pick()
        tensor = data(self.rank, count, dtype)
        self.refuse("meta", lambda: dist.all_reduce(torch.empty(count, device="meta")))
        dist.all_reduce(tensor)
        self.same("all_reduce", tensor, sum(data(one, count, dtype) for one in range(self.size)))


OPERATIONS = ["all_gather_into_tensor", "all_gather", "reduce_scatter_tensor", "reduce_scatter", "all_to_all_single",
              "all_to_all", "gather", "scatter", "all_reduce"]  # fmt: skip


def run(calls, seed):
    store = dist.TCPStore("127.0.0.1", int(os.environ["RANDOM_SIZES_PORT"]), int(os.environ["FARANDOLE_SIZE"]),
                          os.environ["FARANDOLE_RANK"] == "0")  # fmt: skip
    dist.init_process_group("farandole", store=store, rank=int(os.environ["FARANDOLE_RANK"]),
                            world_size=int(os.environ["FARANDOLE_SIZE"]))  # fmt: skip
    caller = Caller(seed)
    for number in range(calls):
        operation = caller.shared.choice(OPERATIONS)
        try:
            getattr(caller, operation)()
        except Exception as error:
            raise AssertionError(f"seed {seed}, call {number}: {operation}: {type(error).__name__}: {error}") from error
    dist.destroy_process_group()
    return caller.calls, caller.refusals
