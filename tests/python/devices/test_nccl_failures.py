"""Jobs in which NCCL is missing, old, different between ranks, or fails, on the fakes."""

import os
import signal
import time
import urllib.request

import fake_devices
import farandole as fdl
import numpy as np
import pytest
import test_devices
from launch import free_port, launch

# The settings of rank 1 that rank 0 lacks, and the texts that both report.
DAYS = {
    "another version": ({"FAKE_NCCL_VERSION": "22903"}, "has NCCL 2.32.3, rank 1", "has 2.29.3; install the same "
                                                                                      "on all"),
    "too old": ({"FAKE_NCCL_VERSION": "21705"}, "rank 1", "has no library for collectives on devices that it may "
                                                             "use"),
    "absent": ({"FARANDOLE_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}, "rank 1", "install NCCL there"),
    "one GPU for both": ({}, "are on the same GPU", "set NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks"),
}  # fmt: skip
OWN_WORDS = {"too old": "is NCCL 2.17.5, too old; 2.18 or newer is needed",
             "absent": "cannot open what nccl_library names (/nowhere/libnccl.so.2"}  # fmt: skip


def start():
    """Rank 1 gets the test's settings before NCCL is opened."""
    if os.environ["FARANDOLE_RANK"] == "1":
        os.environ.update(DAYS[os.environ["TEST_DAY"]][0])
    fdl.init()
    return fake_devices.array(np.full(1000, fdl.rank() + 1, "float32"))


def sum_without_nccl():
    tensor = start()
    for name in ("first", "second"):
        result = fdl.allreduce(tensor, name=name)
        assert (result.get() == 3).all()


def insist_on_nccl():
    tensor = start()
    with pytest.raises(fdl.Error) as failure:
        fdl.allreduce(tensor, name="first")
    print("raised:", failure.value)


@pytest.mark.parametrize("day", DAYS)
def test_an_unusable_nccl_is_reported_once_and_sums_are_right(day):
    printed = launch(2, sum_without_nccl, fake_devices.environment(nccl=True, TEST_DAY=day))
    line = "collectives on devices go through the host's memory: "
    assert printed[0].count(line) == 1 and line not in printed[1], printed
    assert all(words in printed[0] for words in DAYS[day][1:]), printed


@pytest.mark.parametrize("day", DAYS)
def test_requiring_an_unusable_nccl_fails_on_all_ranks_with_the_reason(day):
    printed = launch(
        2, insist_on_nccl, fake_devices.environment(nccl=True, TEST_DAY=day, FARANDOLE_DEVICE_COLLECTIVES="nccl")
    )
    raised = [next(line for line in one.splitlines() if line.startswith("raised:")) for one in printed]
    assert all("device_collectives=nccl is not possible" in one for one in raised), printed
    assert all(words in one for one in raised for words in DAYS[day][1:]), printed
    assert OWN_WORDS.get(day, "") in printed[1], printed


# ---- while it works

ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "FARANDOLE_SUSPECT_AFTER_S": "0.1"}


def test_a_rank_that_is_killed_under_nccl_is_named():
    launch(3, test_devices.lose_a_rank, fake_devices.environment(nccl=True, **ONE_GPU), codes=[0, -9, 0])


def wait_for_the_device_alone():
    fdl.init()
    tensor = fake_devices.array(np.ones(5000, "float32"))
    with fdl.Communicator() as comm, fdl.Communicator() as on_host:
        comm.allreduce(tensor, tensor)
        fake_devices.synchronize()
        if fdl.rank() == 1:
            for other in (0, 2):
                on_host.recv(np.empty(1), other)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.allreduce(tensor, tensor)  # is queued, and rank 1 never joins it
        on_host.send(np.ones(1), 1)
        fake_devices.synchronize()
        with pytest.raises(fdl.PeerLostError) as failure:
            comm.allreduce(tensor, tensor)
        assert failure.value.culprit_rank == 1


def test_a_wait_for_the_device_ends_when_a_rank_is_killed():
    launch(3, wait_for_the_device_alone, fake_devices.environment(nccl=True, **ONE_GPU), codes=[0, -9, 0])


def come_too_late():
    """Rank 1 is busy until the others, which wait for the device only, return."""
    port = free_port()
    os.environ["FARANDOLE_METRICS_PORT"] = str(port - int(os.environ["FARANDOLE_RANK"]))  # the local rank is added
    fdl.init()
    tensor = fake_devices.array(np.ones(5000, "float32"))
    with fdl.Communicator() as comm:
        comm.allreduce(tensor, tensor)
        fake_devices.synchronize()
        if fdl.rank() == 1:
            while not os.path.exists(os.environ["TEST_MARK"]):
                time.sleep(0.01)
        else:
            comm.allreduce(tensor, tensor)
            fake_devices.synchronize()
            open(os.environ["TEST_MARK"], "w").close()
        with pytest.raises(fdl.TimeoutError) as failure:
            comm.allreduce(tensor, tensor)
        assert failure.value.culprit_rank == 1
    print("raised:", failure.value)
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    print(next(line for line in page.splitlines() if line.startswith("farandole_stalls_total{")))


def test_a_late_rank_is_named_during_a_wait_for_the_device_and_then_ends_it(tmp_path):
    patience = {
        "FARANDOLE_STALL_WARNING_S": "0.3",
        "FARANDOLE_STALL_SHUTDOWN_S": "1.5",
        "TEST_MARK": str(tmp_path / "mark"),
    }
    printed = launch(3, come_too_late, fake_devices.environment(nccl=True, **{**ONE_GPU, **patience}))
    raised = [next(line for line in one.splitlines() if line.startswith("raised:")) for one in printed]
    assert all("allreduce number 2 on cuda:0" in one and "for rank 1 (" in one for one in raised), printed
    assert all("which has begun 1 there" in one and "stall_shutdown_s" in one for one in raised), printed
    warned = [line for one in printed for line in one.splitlines() if "communicator 'all comm 0'" in line]
    assert any("has waited" in line and "for rank 1 (" in line for line in warned), printed
    counted = [
        float(line.split()[-1]) for one in printed for line in one.splitlines() if line.startswith("farandole_stalls")
    ]
    assert len(counted) == 3 and sum(counted) == len(warned), printed


def fail_while_nobody_calls():
    if os.environ["FARANDOLE_RANK"] == "1":
        os.environ["FAKE_NCCL_ERROR_AT"] = "2"
    fdl.init()
    tensor = fake_devices.array(np.ones(5000, "float32"))
    with fdl.Communicator() as comm:
        comm.allreduce(tensor, tensor)
        fake_devices.synchronize()
        comm.allreduce(tensor, tensor)
        fake_devices.synchronize()  # returns, because the library ends NCCL's operations
        with pytest.raises(fdl.Error) as failure:
            comm.allreduce(tensor, tensor)
        assert failure.value.culprit_rank == 1
    print("raised:", failure.value)


def test_an_error_of_nccl_is_found_while_all_ranks_wait_for_the_device():
    printed = launch(2, fail_while_nobody_calls, fake_devices.environment(nccl=True, **ONE_GPU))
    raised = [next(line for line in one.splitlines() if line.startswith("raised:")) for one in printed]
    assert all("failed on rank 1" in one and ": the network has failed" in one for one in raised), printed


def fail_in_nccl():
    if os.environ["FARANDOLE_RANK"] == "1":
        os.environ[os.environ["TEST_PLAN"]] = os.environ["TEST_MOMENT"]
    fdl.init()
    tensor = fake_devices.array(np.ones(5000, "float32"))
    with pytest.raises(fdl.Error) as failure:
        for _ in range(1000):
            fdl.allreduce(tensor, name="loop", out=tensor)
            fake_devices.synchronize()
    print("raised:", failure.value)


@pytest.mark.parametrize("plan, moment, words", [
    ("FAKE_NCCL_FAIL", "AllReduce:3:2", "unhandled system error"),
    ("FAKE_NCCL_ERROR_AT", "3", ": the network has failed"),
])  # fmt: skip
def test_an_error_of_nccl_is_raised_with_its_text_on_all_ranks(plan, moment, words):
    printed = launch(
        2, fail_in_nccl, fake_devices.environment(nccl=True, TEST_PLAN=plan, TEST_MOMENT=moment, **ONE_GPU)
    )
    raised = [next(line for line in one.splitlines() if line.startswith("raised:")) for one in printed]
    assert all("rank 1" in one for one in raised), printed
    assert "failed on rank 1" in raised[1] and words in raised[1] and "NCCL_DEBUG=WARN" in raised[1], printed
