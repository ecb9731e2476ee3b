"""Failures with backend="farandole": all ranks name the missing, lost or wrong rank within seconds, and none hangs."""

import datetime
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole.torch.distributed import monitored_barrier
from launch import ROOT, free_port, launch
from limits import allowed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ.get("FARANDOLE_RANK", 0)), int(os.environ.get("FARANDOLE_SIZE", 1))
numbers = iter(range(1000))


def start(**options):
    store = os.path.join(tempfile.gettempdir(), f"farandole-store-{os.environ['FARANDOLE_JOB_KEY']}-{next(numbers)}")
    dist.init_process_group("farandole", init_method=f"file://{store}", rank=rank, world_size=size, **options)


def raises(kind, text, action, *arguments, **options):
    with pytest.raises(kind, match=text) as caught:
        action(*arguments, **options)
    assert isinstance(caught.value, RuntimeError), "torch's users expect a RuntimeError"
    return caught.value


def model_of(group=None):
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(8)]
    return DistributedDataParallel(nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.02)


class DiesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        os.kill(os.getpid(), signal.SIGKILL)


def a_rank_dies_in_backward():
    start()
    model = model_of()
    model(torch.ones(4, 64)).sum().backward()
    dist.barrier()
    middle = model.module[:4](torch.ones(4, 64))
    if rank == 1:
        middle = DiesInBackward.apply(middle)
    begin = time.monotonic()

    def goes_on():
        for _ in range(3):
            model(torch.ones(4, 64)).sum().backward()

    if rank == 1:
        model.module[4:](middle).sum().backward()
    error = raises(RuntimeError, "rank 1", goes_on)
    # With the first backward pass. A rank that is only silent is lost after 10 s.
    assert time.monotonic() - begin < 9, "a lost rank is noticed at once"
    assert not isinstance(error, farandole.Error) or error.culprit_rank == 1
    raises(farandole.PeerLostError, "rank 1", dist.all_reduce, torch.ones(1))


def test_a_rank_that_dies_in_backward_is_named():
    launch(3, a_rank_dies_in_backward, codes=[0, -signal.SIGKILL, 0])


def ranks_disagree():
    start(timeout=datetime.timedelta(seconds=20))
    group = dist.new_group()
    text = "rank 0 .* called allreduce of 10 float32 .*, but rank 1 .* called allreduce of 11 float32"
    raises(farandole.MismatchError, text, dist.all_reduce, torch.ones(10 + rank), group=group)
    group = dist.new_group()
    tensor = torch.ones(10) if rank else torch.ones(10).double()
    raises(
        farandole.MismatchError,
        "allreduce of 10 float64 .* allreduce of 10 float32",
        dist.all_reduce,
        tensor,
        group=group,
    )
    group = dist.new_group()
    if rank == 0:
        # Its message may have been sent before the other checked it: the next call raises.
        raises(
            farandole.AbortedError,
            "recv of 8 bytes from rank 0 .*sent 400 bytes",
            lambda: [group.send([torch.ones(100)], 1, 0).wait(), group.recv([torch.ones(1)], 1, 0).wait()],
        )
    else:
        raises(
            farandole.MismatchError,
            "recv of 8 bytes from rank 0 .*sent 400 bytes",
            group.recv([torch.ones(2)], 0, 0).wait,
        )
    dist.barrier()  # what ended are the groups that disagreed
    dist.destroy_process_group()


def ranks_are_late():
    start()
    short = datetime.timedelta(seconds=0.3)
    collective, message, waited = (dist.new_group(timeout=short) for _ in range(3))
    if rank == 0:
        error = raises(
            farandole.TimeoutError, "not finished before its deadline", dist.all_reduce, torch.ones(1), group=collective
        )
        assert error.operation == "allreduce" and error.phase, error.fields()
        error = raises(
            farandole.TimeoutError, "recv of 4 bytes from rank 1", dist.recv, torch.ones(1), 1, group=message
        )
        assert error.culprit_rank == 1
        work = dist.all_reduce(torch.ones(1), group=waited, async_op=True)
        raises(farandole.TimeoutError, "not finished", work.wait, datetime.timedelta(seconds=0.1))
        raises(farandole.TimeoutError, "rank 1 did not arrive within 0.3 s", monitored_barrier, None, short)
    dist.barrier()
    if rank == 1:
        raises(farandole.TimeoutError, "rank 1 did not arrive", monitored_barrier, None, short)
    monitored_barrier(None, datetime.timedelta(seconds=30))
    # A failure comes out of futures too.
    group = dist.new_group(timeout=short)
    if rank == 0:
        future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()
        raises(RuntimeError, "not finished|deadline|TIMEOUT", future.then(lambda done: done.value()).wait)
    dist.barrier()
    dist.destroy_process_group()


def one_aborts():
    start()
    group = dist.new_group()
    if rank == 0:
        group.abort()
    else:
        raises(farandole.AbortedError, "rank 0", dist.all_reduce, torch.ones(1), group=group)
    dist.barrier()
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
        dist.destroy_process_group(group)  # with work in flight that the other rank never joins
        raises(farandole.AbortedError, "destroyed while an operation was in flight", work.wait)
        raises(farandole.ShutDownError, "destroyed", group.allreduce, [torch.ones(1)])
    dist.barrier()
    dist.destroy_process_group()


def begins_and_ends_many_times():
    for _ in range(100):
        start()
        value = torch.ones(1)
        dist.all_reduce(value, async_op=True).wait()
        assert value.item() == size
        dist.destroy_process_group()
    files = len(os.listdir("/proc/self/fd"))
    assert files < 60, f"{files} descriptors are left open"


def orders_are_left_to_chance():
    start()
    group = dist.new_group()
    both_started = threading.Event()

    def starts_another(_):
        # On rank 1 the first may be over before this is hung onto it: then this runs at once and in the same thread.
        if threading.current_thread() is not threading.main_thread():
            assert both_started.wait(20)
        dist.all_reduce(torch.ones(2), group=group)

    if rank == 1:
        dist.barrier()  # until rank 0 has hung its callback onto what cannot be over yet
    future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(starts_another)
    if rank == 0:
        dist.barrier()
    other = dist.all_reduce(torch.ones(3), group=group, async_op=True)  # the callback's may come before it or behind
    both_started.set()
    # The first rank that detects it ends the group, whose other operations fail with its text. The core detects that
    # the calls differ as soon as both have begun.
    callback = r"in the callback of another one's future.*farandole.torch.distributed.in_order\(hook\)"
    mismatch = "called allreduce of 3 .* called allreduce of 2 .*the same collectives in the same order"
    raises(RuntimeError, callback if rank == 0 else f"{callback}|{mismatch}", future.wait)
    group = dist.new_group()
    values = []

    def continues(_):  # no other operation is started meanwhile: the order is equal on all ranks
        for _ in range(3):
            value = torch.ones(2)
            dist.all_reduce(value, group=group, async_op=True).get_future().wait()
            values.append(value.sum().item())

    dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(continues).wait()
    assert values == [2 * size] * 3
    dist.all_reduce(torch.ones(1), group=group)
    del other
    dist.barrier()
    dist.destroy_process_group()


def bad_days():
    for day in (ranks_disagree, ranks_are_late, one_aborts, orders_are_left_to_chance, begins_and_ends_many_times):
        begin = time.monotonic()
        day()
        print(f"{day.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


def test_failures_are_raised_and_the_group_survives():
    launch(2, bad_days)


def leaves_without_a_word():
    start()
    dist.all_reduce(torch.ones(5))
    keep.append(dist.irecv(torch.ones(1000), 1 - rank))
    keep.append(dist.all_reduce(torch.ones(1000), async_op=True) if rank == 0 else None)
    keep.append(keep[1].get_future().then(lambda done: print("never", done)) if rank == 0 else None)


keep = []


def test_an_interpreter_ends_with_operations_in_flight():
    launch(2, leaves_without_a_word, deadline_s=30, fresh=True)


# One Gloo job for each torchrun: a second one would find the addresses of the first in torchrun's store.
@pytest.mark.parametrize("names", [["06_torch_ddp", "08_torch_dtensor"], ["07_torch_fsdp2", "09_torch_pipeline"]])
def test_the_examples_run_under_torchrun(names):
    examples = os.path.join(ROOT, "examples")
    program = "import runpy\nfor name in {!r}: runpy.run_path('{}/' + name + '.py', run_name='__main__')"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(program.format(names, examples))
        script.flush()
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--master-port",
            str(free_port()),
            script.name,
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allowed(90),
                              env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    assert done.returncode == 0, done.stdout
    for name in names:
        assert f"{name}: " in done.stdout, done.stdout
