"""Measures a training step that reduces ResNet-50's gradients (161 tensors, 102 MB): DDP over NCCL, DDP over farandole
and farandole's DistributedOptimizer, in turns in one run, beside the same step without reduction.

    python ddp_bench.py [--ranks N] [--steps N] [--check] [--json FILE]
    python ddp_bench.py --overlap          which share of the reduction is hidden by a backward pass that computes
    python ddp_bench.py --profile PREFIX   writes a trace of three steps of each way by rank 0, PREFIX-WAY.json
    python ddp_bench.py --without-peer     without DDP over NCCL
    python ddp_bench.py --shared-gradients also with gradients in memory that the ranks share: no bucket is packed
    python ddp_bench.py --device cpu       on a machine without GPU, beside Gloo: shows that the script works

Ranks are distributed over the GPUs round-robin (without --ranks: one for each GPU). The model's backward pass only
fills its gradients, so that the reduction dominates; with --overlap a second model of 24 layers multiplies matrices.
Each number is the slowest rank's; median and minimum over the steps. --check: checks gradients only, of small tensors.
The exit code is 3 without a GPU, or without NCCL in PyTorch, and 4 if a gradient is wrong or a rank fails.
"""

import argparse
import ctypes
import json
import os
import secrets
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "compare"))
from models import resnet50

NONE, WRONG = 3, 4
WARM_UP = 3
# The model that computes: 100 MB of gradients. On a CPU it is small, since its times mean nothing there.
LAYERS = 24
WIDTH = {"cuda": 1024, "cpu": 64}


def make_sums(counts, device):
    """A model whose backward pass only fills its gradients."""
    import torch

    class Sums(torch.nn.Module):
        """The sum of all parameters times a factor, so that each element of a gradient is that factor."""

        def __init__(self):
            super().__init__()
            self.all = torch.nn.ParameterList(
                [torch.nn.Parameter(torch.zeros(count, device=device)) for count in counts]
            )

        def forward(self, factor):
            return sum(one.sum() for one in self.all) * factor

    return Sums()


def make_layers(options, device):
    """A model with as many gradients as Sums of LAYERS squares, whose backward pass multiplies matrices."""
    import torch

    width = WIDTH[options.device]
    batch = torch.ones(4 * width, width, device=device)

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.all = torch.nn.Sequential(
                *(torch.nn.Linear(width, width, bias=False, device=device) for _ in range(LAYERS))
            )

        def forward(self, factor):
            return self.all(batch).sum() * factor

    return Layers()


def make_ways(options, make_model, device):
    """Yields name, model and optimizer of each way, the peer's first."""
    import farandole.torch as hvd
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.0)

    index = [device.index] if device.type == "cuda" else None
    for backend in ("farandole",) if options.without_peer else (options.peer, "farandole"):
        model = DistributedDataParallel(make_model(), index, process_group=dist.new_group(backend=backend))
        yield f"DDP, {backend}", model, sgd(model)
    for shared in (False, True) if options.shared_gradients else (False,):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model), model.named_parameters(), gradients_in_shared_memory=shared)
        yield "the same, shared gradients" if shared else "DistributedOptimizer", model, optimizer
    alone = make_model()
    yield "alone", alone, sgd(alone)


def wait_for(device):
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step(model, optimizer, factor):
    optimizer.zero_grad()
    model(factor).backward()
    optimizer.step()


def check(ways, rank, size, device):
    """Rank r's factor is r + 1, so that the average is exact. DDP rebuilds its buckets after the first step."""
    for name, model, optimizer in ways:
        expected = rank + 1 if name == "alone" else (size + 1) / 2
        for _ in range(3):
            step(model, optimizer, float(rank + 1))
            wait_for(device)
            for parameter, gradient in model.named_parameters():
                if not bool((gradient.grad == expected).all()):
                    print(f"ddp_bench: {name}: the gradient of {parameter} is not {expected}", file=sys.stderr)
                    sys.exit(WRONG)


def measure(ways, steps, device):
    """The slowest rank's milliseconds of each step, by way."""
    import torch
    import torch.distributed as dist

    times = {name: [] for name, _, _ in ways}
    for turn in range(steps + WARM_UP):
        for name, model, optimizer in ways:
            wait_for(device)
            dist.barrier()
            begin = time.perf_counter()
            step(model, optimizer, 1.0)
            wait_for(device)
            if turn >= WARM_UP:
                times[name].append((time.perf_counter() - begin) * 1e3)
    slowest = torch.tensor([times[name] for name, _, _ in ways], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(times, slowest.tolist()))


def profile(ways, prefix, rank, device):
    """Rank 0 writes one trace for each way, which a browser's tracing page and Perfetto show."""
    import torch

    for name, model, optimizer in ways:
        for _ in range(WARM_UP):
            step(model, optimizer, 1.0)
        wait_for(device)
        with torch.profiler.profile() as trace:
            for _ in range(3):
                step(model, optimizer, 1.0)
            wait_for(device)
        if rank == 0:
            trace.export_chrome_trace(f"{prefix}-{name.replace(', ', '-')}.json")


def run_ways(options, rank, device):
    """The times by model and way; empty where none are taken."""
    counts = [max(count // (1000 if options.check else 1), 1) for count in resnet50()]
    if options.overlap:
        squares = [WIDTH[options.device] ** 2] * LAYERS
        models = {
            "fills": lambda: make_sums(squares, device),
            "computes": lambda: make_layers(options, device),
        }
    else:
        models = {"fills": lambda: make_sums(counts, device)}
    times = {}
    for model, make_model in models.items():
        ways = list(make_ways(options, make_model, device))
        if model == "fills":
            check(ways, rank, options.ranks, device)
        if options.profile:
            profile(ways, options.profile, rank, device)
        elif not options.check:
            times[model] = measure(ways, options.steps, device)
        for _, _, optimizer in ways:
            optimizer.zero_grad()
    return times


def rank_main(rank, options, folder, key):
    os.environ.update(FARANDOLE_RANK=str(rank), FARANDOLE_SIZE=str(options.ranks), FARANDOLE_JOB_KEY=key,
                      FARANDOLE_RENDEZVOUS=f"file://{folder}/rendezvous")  # fmt: skip
    import farandole.torch as hvd
    import farandole.torch.distributed  # noqa: F401 (names the backend where PyTorch does not find it)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    hvd.init()
    # The benchmark's own barriers and reductions use Gloo on the CPU.
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    times = run_ways(options, rank, device)
    if rank == 0:
        with open(os.path.join(folder, "result.json"), "w") as file:
            json.dump(times, file)
    dist.barrier()
    dist.destroy_process_group()
    hvd.shutdown()


def show_steps(options, times):
    """Returns the rows for the file."""
    base = statistics.median(times["alone"])
    print(
        f"{options.ranks} ranks on {options.device}, {sum(resnet50()) * 4 / 1e6:.0f} MB of gradients, "
        f"{options.steps} steps"
    )
    print(f"{'':28}{'median ms':>12}{'minimum ms':>12}{'more than alone':>18}")
    rows = []
    for name, each in times.items():
        median = statistics.median(each)
        print(f"{name:28}{median:>12.2f}{min(each):>12.2f}{median - base:>18.2f}")
        rows.append({"bench": "ddp", "what": name, "ranks": options.ranks, "device": options.device,
                     "median_ms": round(median, 4), "minimum_ms": round(min(each), 4)})  # fmt: skip
    return rows


def show_overlap(options, times):
    """Returns the rows for the file. Hidden: what a step that computes does not become longer by."""
    print(f"{options.ranks} ranks on {options.device}, {LAYERS} layers of {WIDTH[options.device]} squared")
    print(f"{'':28}{'reduction ms':>14}{'computation ms':>16}{'both ms':>10}{'hidden':>9}")
    rows = []
    filled, computed = ({name: statistics.median(each) for name, each in times[one].items()} for one in times)
    for name in filled:
        if name == "alone":
            continue
        reduction = filled[name] - filled["alone"]
        visible = computed[name] - computed["alone"]
        hidden = 1 - visible / reduction if reduction > 0 else 0.0
        print(f"{name:28}{reduction:>14.2f}{computed['alone']:>16.2f}{computed[name]:>10.2f}{hidden:>9.0%}")
        rows.append({"bench": "overlap", "what": name, "ranks": options.ranks, "device": options.device,
                     "reduction_ms": round(reduction, 4), "computation_ms": round(computed["alone"], 4),
                     "both_ms": round(computed[name], 4), "hidden": round(hidden, 4)})  # fmt: skip
    return rows


def show(options, times):
    if not times:
        written = f"; the traces are {options.profile}-*.json" if options.profile else ""
        print(f"{options.ranks} ranks on {options.device}: all gradients are right{written}")
        return
    rows = show_overlap(options, times) if options.overlap else show_steps(options, times["fills"])
    if options.json:
        with open(options.json, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def what_is_missing(options):
    """The reason why nothing can be measured, or None. Called before any rank begins."""
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:
        return f"PyTorch is not here ({error})"
    try:
        import farandole.torch  # noqa: F401
    except (ImportError, OSError) as error:
        return f"farandole is not here, or not for Python {sys.version.split()[0]} ({error})"
    if options.device == "cpu":
        return None
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no GPU here (--device cpu shows that the script works)"
    if not dist.is_nccl_available():
        return f"PyTorch {torch.__version__} is built without NCCL"
    return None


def nccl_version():
    """That of the library that PyTorch calls, which LD_PRELOAD may name; torch.cuda.nccl.version() is its header's."""
    import torch

    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except OSError:  # built into PyTorch
        return tuple(torch.cuda.nccl.version())
    return number.value // 10000, number.value // 100 % 100, number.value % 100


def share_devices(options):
    """Prepares ranks that share GPUs, which needs NCCL 2.30 or newer. Without it DDP over NCCL is left out."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    version = nccl_version()
    if version < (2, 30) and not options.without_peer:
        print(f"DDP over NCCL is left out: NCCL {'.'.join(map(str, version))} lets no ranks share a GPU; 2.30 does")
        options.without_peer = True


def run_ranks(program, run, options, folder):
    """Runs `run` on each rank, in a process of its own. Returns 0, or the exit code of the program."""
    import torch.multiprocessing

    try:
        torch.multiprocessing.spawn(run, (options, folder, secrets.token_hex(16)), nprocs=options.ranks)
    except torch.multiprocessing.ProcessExitedException as error:
        return error.exit_code if error.exit_code > 0 else WRONG
    except torch.multiprocessing.ProcessRaisedException as error:
        print(f"{program}: a rank failed: {error}", file=sys.stderr)
        return WRONG
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--profile", metavar="PREFIX")
    parser.add_argument("--without-peer", action="store_true")
    parser.add_argument("--shared-gradients", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    missing = what_is_missing(options)
    if missing:
        print(f"ddp_bench: there is nothing to measure: {missing}", file=sys.stderr)
        return NONE
    import torch

    devices = torch.cuda.device_count() if options.device == "cuda" else 2
    options.ranks = options.ranks or devices
    options.peer = "nccl" if options.device == "cuda" else "gloo"
    if options.ranks > devices and options.device == "cuda":
        share_devices(options)
    with tempfile.TemporaryDirectory() as folder:
        failed = run_ranks("ddp_bench", rank_main, options, folder)
        if failed:
            return failed
        with open(os.path.join(folder, "result.json")) as file:
            show(options, json.load(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
