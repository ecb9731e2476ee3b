"""Ends of jobs with Horovod's interface: an exception in one rank, a death in backward, shutdowns, exits with
operations in flight."""

import os
import signal
import time

import farandole
import horovod.torch as hvd
import pytest
import torch
import torch.nn as nn
from launch import launch


def _trained(steps, hook=None):
    """A training loop; `hook(step)` runs during each backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(steps):
        optimizer.zero_grad()
        hidden = model[:4](torch.ones(4, 32))
        if hook:
            hidden.register_hook(lambda gradient, step=step: hook(step))
        model[4:](hidden).sum().backward()
        optimizer.step()


def _told(action):
    """Prints the error and its time, on the clock that all processes of the machine share."""
    with pytest.raises(hvd.HorovodInternalError) as caught:
        action()
    print("ERROR", time.monotonic(), type(caught.value).__name__, str(caught.value), sep="\t", flush=True)
    return caught.value


def _seconds_until_error(outputs, word):
    began = max(float(line.split("\t")[1]) for text in outputs for line in text.splitlines() if line.startswith(word))
    reports = [line.split("\t") for text in outputs for line in text.splitlines() if line.startswith("ERROR")]
    for _, moment, kind, text in reports:
        print(f"after {1000 * (float(moment) - began):.0f} ms: {kind}: {text}")
    return [float(moment) - began for _, moment, _, _ in reports], {text for _, _, _, text in reports}


class Wrong(Exception):
    pass


def one_rank_raises():
    hvd.init()

    def wrong(step):
        if step == 3 and hvd.rank() == 1:
            print("RAISED", time.monotonic(), sep="\t", flush=True)
            raise Wrong("a batch that cannot be read")

    if hvd.rank() == 1:
        _trained(1000, wrong)  # ends with a traceback
    else:
        _told(lambda: _trained(1000, wrong))


def test_an_exception_in_one_rank_ends_the_others_in_time():
    outputs = launch(3, one_rank_raises, codes=[0, 1, 0])
    assert "a batch that cannot be read" in outputs[1]
    seconds, texts = _seconds_until_error(outputs, "RAISED")
    assert len(seconds) == 2 and len(texts) == 1, texts
    assert all("rank 1 " in text and " has shut down" in text for text in texts), texts
    assert max(seconds) < 9  # 2 s on an idle machine; a silent rank is lost after 10 s


def one_rank_is_killed_in_backward():
    hvd.init()

    def die(step):
        if step == 3 and hvd.rank() == 2:
            print("KILLED", time.monotonic(), sep="\t", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    error = _told(lambda: _trained(1000, die))
    assert isinstance(error, farandole.PeerLostError) and error.culprit_rank == 2 and error.culprit_host
    _told(lambda: hvd.allreduce(torch.ones(1)))


def test_a_rank_that_is_killed_in_backward_is_named():
    outputs = launch(3, one_rank_is_killed_in_backward, codes=[0, 0, -signal.SIGKILL])
    seconds, texts = _seconds_until_error(outputs, "KILLED")
    assert all("rank 2 on " in text for text in texts), texts
    assert max(seconds) < 9  # it is known at once, and not because the rank is silent


def one_rank_is_killed_after_rank_0_has_left():
    """Rank 0 serves the coordinator, whose decision the others would wait for."""
    hvd.init()
    others = hvd.add_process_set([1, 2])
    if hvd.rank() == 0:
        hvd.shutdown()
        return

    def train():
        while True:
            time.sleep(0.01)
            hvd.allreduce(torch.ones(3), name="step", process_set=others)
            if hvd.rank() == 2 and time.monotonic() > end:
                print("KILLED", time.monotonic(), sep="\t", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    end = time.monotonic() + 4  # rank 0 serves for 2 s after its shutdown
    _told(train)


def test_a_loss_after_rank_0_has_left_is_known_at_once():
    outputs = launch(3, one_rank_is_killed_after_rank_0_has_left, codes=[0, 0, -signal.SIGKILL])
    seconds, texts = _seconds_until_error(outputs, "KILLED")
    assert len(texts) == 1 and all("rank 2 " in text for text in texts), texts
    assert max(seconds) < 9  # the limit for a decision is 30 s


def rank_0_leaves_while_others_wait():
    hvd.init()
    hvd.allreduce(torch.ones(1), name="together")
    if hvd.rank() == 0:
        time.sleep(0.3)
        print("LEAVES", time.monotonic(), sep="\t", flush=True)
        hvd.shutdown()
    else:
        _told(lambda: hvd.allreduce(torch.ones(1), name="without rank 0"))


def test_operations_end_at_the_shutdown_of_rank_0():
    outputs = launch(4, rank_0_leaves_while_others_wait)
    seconds, texts = _seconds_until_error(outputs, "LEAVES")
    assert len(seconds) == 3 and len(texts) == 1 and "rank 0 " in texts.pop(), texts
    assert min(seconds) < 1.5  # rank 0 waits for 2 s until the others have left, with its connections open


def many_lives():
    for life in range(100):
        hvd.init()
        members = hvd.add_process_set([0]) if life % 10 == 0 else None
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3
        assert members is None or members.process_set_id == 1
        hvd.shutdown()
        with pytest.raises(ValueError):
            hvd.rank()
    _told(lambda: hvd.allreduce(torch.ones(1)))


def test_a_hundred_init_shutdown_cycles():
    launch(2, many_lives)


def exits_in_flight():
    """The interpreter ends while operations wait for ranks that never arrive."""
    hvd.init()
    hvd.barrier()
    hvd.allreduce(torch.ones(1), name="together")
    if hvd.rank() == 0:
        for n in range(5):
            hvd.allreduce_async(torch.ones(100_000), name=f"nobody_else.{n}")
            hvd.allgather_async(torch.ones(100), name=f"nobody_else.{n}")
    print("END", flush=True)


def test_an_interpreter_may_end_with_operations_in_flight():
    outputs = launch(2, exits_in_flight, deadline_s=30, fresh=True)
    for text in outputs:
        assert "END" in text and "Traceback" not in text and "terminate" not in text, text


def stalls():
    hvd.init()
    apart = farandole.Communicator()  # its calls have no names and cannot stall
    if hvd.rank() == 0:
        error = _told(lambda: hvd.allreduce(torch.ones(2), name="lonely"))
        assert "allreduce.lonely" in str(error) and "rank 1" in str(error), error
    apart.barrier()


def test_horovods_stall_variables_are_obeyed():
    variables = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5",
                 "HOROVOD_CYCLE_TIME": "5"}  # fmt: skip
    outputs = launch(2, stalls, variables)
    assert "allreduce.lonely" in outputs[0] and "rank 1" in outputs[0]
    assert "HOROVOD_CYCLE_TIME=5 does nothing here" in outputs[0]
    assert "HOROVOD_CYCLE_TIME" not in outputs[1]


def another_key():
    if os.environ["FARANDOLE_RANK"] == "1":
        os.environ["FARANDOLE_JOB_KEY"] = "a key of sixteen or more that is not the job's"
    with pytest.raises(ValueError, match="initialization failed") as caught:
        hvd.init()
    print("REFUSED", type(caught.value).__name__, str(caught.value), sep="\t", flush=True)


def test_a_process_without_the_key_cannot_send_an_object():
    """Objects are unpickled only after every connection has proved possession of the key."""
    outputs = launch(2, another_key, {"FARANDOLE_START_TIMEOUT_S": "2"})
    assert "REFUSED\tAuthenticationError" in outputs[1], outputs[1]
    assert "REFUSED" in outputs[0]
