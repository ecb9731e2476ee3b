"""torch.distributed over Gloo and over farandole, side by side in one run: latencies, bandwidths, and a step of DDP.

    python bench/torch_distributed_bench.py --ranks 2 [--quick] [--json FILE]

Each number is the slowest rank's, median and minimum over repetitions; buffers rotate beyond the caches. busbw is
2 (n-1)/n bytes / time, as others report it. The rows of 4 bytes that end in async_wait, future_wait, future_then and
eight_futures are the ways to wait for an all_reduce with async_op=True. The DDP step is what the reduction of
ResNet-50's gradients (161 tensors, 102 MB) costs: buckets of 25 MB as DDP makes them, started one after the other and
then waited for.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "compare"))
from models import resnet50

BACKENDS = ("gloo", "farandole")
ROTATED_BYTES = 256 << 20


def ddp_buckets(counts, cap_bytes=25 << 20, first_bytes=1 << 20):
    """The sizes of DDP's buckets, which are filled in reverse order, the first one small."""
    buckets, filled, cap = [], 0, first_bytes
    for count in reversed(counts):
        filled += count
        if filled * 4 >= cap:
            buckets.append(filled)
            filled, cap = 0, cap_bytes
    return buckets + ([filled] if filled else [])


def timed(action, repeats, group):
    """The slowest rank's seconds for each repetition."""
    times = []
    for turn in range(repeats + 2):
        dist.barrier(group)
        begin = time.perf_counter()
        action(turn)
        times.append(time.perf_counter() - begin)
    slowest = torch.tensor(times[2:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
    return slowest.tolist()


def measure_collectives(group, sizes, quick):
    size = dist.get_world_size()
    rows = []
    for bytes in sizes:
        count = bytes // 4
        copies = max(1, min(64, ROTATED_BYTES // max(bytes, 1) // 4)) if bytes >= 1 << 20 else 1
        tensors = [torch.ones(count) for _ in range(copies)]
        gathered = torch.empty(count * size)
        loops = 200 if bytes <= 1 << 16 else 20 if bytes <= 1 << 20 else 2
        repeats = 5 if quick else 11
        actions = {
            "all_reduce": lambda tensor: dist.all_reduce(tensor, group=group),
            "broadcast": lambda tensor: dist.broadcast(tensor, 0, group=group),
            "all_gather_single": lambda tensor, gathered=gathered: group._allgather_base(gathered, tensor).wait(),
        }
        for name, action in actions.items():

            def loop(turn, action=action, tensors=tensors, loops=loops):
                for step in range(turn * loops, turn * loops + loops):
                    action(tensors[step % len(tensors)])

            times = [one / loops for one in timed(loop, repeats, group)]
            rows.append({"what": name, "bytes": bytes, "median_us": statistics.median(times) * 1e6,
                         "minimum_us": min(times) * 1e6})  # fmt: skip
    return rows


def measure_completions(group, quick):
    """Measures ways of waiting for one all_reduce of 4 bytes that was started with async_op=True."""
    tensors = [torch.ones(1) for _ in range(8)]

    def start(tensor):
        return dist.all_reduce(tensor, group=group, async_op=True)

    def eight():
        for future in [start(tensor).get_future() for tensor in tensors]:
            future.wait()

    actions = {
        "async_wait": (1, lambda: start(tensors[0]).wait()),
        "future_wait": (1, lambda: start(tensors[0]).get_future().wait()),
        "future_then": (1, lambda: start(tensors[0]).get_future().then(lambda done: done.value()[0]).wait()),
        "eight_futures": (8, eight),  # each of them
    }
    rows, loops = [], 100
    for name, (operations, action) in actions.items():

        def loop(_, action=action):
            for _ in range(loops):
                action()

        times = [one / loops / operations for one in timed(loop, 5 if quick else 21, group)]
        rows.append({"what": f"all_reduce {name}", "bytes": 4, "median_us": statistics.median(times) * 1e6,
                     "minimum_us": min(times) * 1e6})  # fmt: skip
    return rows


def measure_step(group, quick):
    buckets = [torch.ones(count) for count in ddp_buckets(resnet50())]

    def step(_):
        futures = [dist.all_reduce(bucket, group=group, async_op=True).get_future() for bucket in buckets]
        for future in futures:
            future.wait()

    times = timed(step, 3 if quick else 7, group)
    return {"what": "ddp_step_resnet50", "bytes": sum(4 * one.numel() for one in buckets),
            "median_us": statistics.median(times) * 1e6, "minimum_us": min(times) * 1e6}  # fmt: skip


def measure_message(group, bytes, repeats):
    rank = dist.get_rank()
    tensor = torch.zeros(bytes // 4)

    def ping(_):
        for _ in range(50):
            if rank == 0:
                dist.send(tensor, 1, group=group)
                dist.recv(tensor, 1, group=group)
            elif rank == 1:
                dist.recv(tensor, 0, group=group)
                dist.send(tensor, 0, group=group)

    times = [one / 100 for one in timed(ping, repeats, group)]
    return {"what": "send_recv", "bytes": bytes, "median_us": statistics.median(times) * 1e6,
            "minimum_us": min(times) * 1e6}  # fmt: skip


def rank_main(rank, size, store, sizes, quick, only, result):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found = {}
    for backend in BACKENDS:
        group = dist.new_group(backend=backend)
        found[backend] = measure_completions(group, quick)
        if only is None:
            found[backend] += measure_collectives(group, sizes, quick)
            found[backend] += [measure_message(group, bytes, 5) for bytes in (4, 65536)]
            found[backend].append(measure_step(group, quick))
        dist.barrier(group)
        dist.destroy_process_group(group)
    if rank == 0:
        with open(result, "w") as file:
            json.dump(found, file)
    dist.destroy_process_group()


def show(size, found):
    print(f"\n{size} ranks, {os.cpu_count()} cores, torch {torch.__version__}: median (minimum) in us")
    print(f"{'':26}{'bytes':>11}{'gloo':>24}{'farandole':>24}{'times':>7}{'busbw GB/s':>12}")
    for theirs, ours in zip(found["gloo"], found["farandole"]):
        cells = [f"{row['median_us']:.1f} ({row['minimum_us']:.1f})" for row in (theirs, ours)]
        factor = theirs["median_us"] / ours["median_us"]
        reduces = ours["what"] in ("all_reduce", "ddp_step_resnet50")
        busbw = f"{2 * (size - 1) / size * ours['bytes'] / ours['median_us'] / 1e3:.2f}" if reduces else ""
        print(f"{ours['what']:26}{ours['bytes']:>11}{cells[0]:>24}{cells[1]:>24}{factor:>7.1f}{busbw:>12}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["completions"], help="only the ways to wait for an all_reduce of 4 bytes")
    parser.add_argument("--json")
    options = parser.parse_args()
    sizes = [4, 65536, 4 << 20] if options.quick else [4, 1024, 16384, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        arguments = (options.ranks, os.path.join(folder, "store"), sizes, options.quick, options.only, result)
        torch.multiprocessing.spawn(rank_main, arguments, nprocs=options.ranks)
        with open(result) as file:
            found = json.load(file)
    show(options.ranks, found)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"ranks": options.ranks, "host": socket.gethostname(), "torch": torch.__version__, **found},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
