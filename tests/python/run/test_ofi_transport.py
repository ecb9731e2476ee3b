"""Tests of the transport over libfabric, with its providers over TCP and UDP, in jobs of processes."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from launch import FARANDOLE
from limits import allowed
from transport_programs import COLLECTIVES, NAMED, REPORT, START

TCP, UDP = "ofi:tcp", "ofi:udp;ofi_rxd"


def run(program, count=2, **environment):
    """Runs the program on so many ranks; returns the exit code and all output."""
    ended = subprocess.run(
        [FARANDOLE, "run", "-np", str(count), "--", sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "FARANDOLE_LOG_LEVEL": "info", **environment},
        capture_output=True, text=True, timeout=allowed(120))  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("provider", [TCP, UDP])
def test_collectives_are_exact(provider, count):
    code, output = run(COLLECTIVES, count, FARANDOLE_TRANSPORT=provider)
    assert code == 0, output
    name = provider if count > 1 else "none"
    assert len(re.findall(rf"rank \d of {count} over {name}", output)) == count, output


@pytest.mark.parametrize("provider", [TCP, UDP])
def test_named_operations_come_in_any_order(provider):
    code, output = run(NAMED, 3, FARANDOLE_TRANSPORT=provider)
    assert code == 0 and output.count("by name") == 3, output


@pytest.mark.parametrize("slice_bytes", ["4096", "4097", "200K"])
def test_slices_of_every_way_are_exact(slice_bytes):
    """Up to 4096 bytes a slice is one packet; longer ones are written, in segments of at least 128 KiB."""
    code, output = run(COLLECTIVES, 3, FARANDOLE_TRANSPORT=TCP, FARANDOLE_SLICE_BYTES=slice_bytes)
    assert code == 0, output


def test_the_first_provider_that_reaches_other_hosts_is_taken_if_none_is_named():
    code, output = run(COLLECTIVES, 2, FARANDOLE_TRANSPORT="ofi")
    assert code == 0 and re.search(r"ofi: .* libfabric \d+\.\d+ \(/.*libfabric\.so", output), output


def test_the_provider_and_its_devices_are_named_in_the_log_once():
    code, output = run(COLLECTIVES, 2, FARANDOLE_TRANSPORT=TCP)
    lines = re.findall(r"ofi: tcp\S* on \S+(?: \([^)]*\))?, libfabric \d+\.\d+ \(/", output)
    assert code == 0 and len(lines) == 1, output


@pytest.mark.parametrize(
    "environment, text",
    [
        ({"FARANDOLE_TRANSPORT": "efa"}, "offers no provider efa"),
        ({"FARANDOLE_TRANSPORT": "ofi:nothing"}, "offers no provider nothing"),
        ({"FARANDOLE_TRANSPORT": TCP, "FARANDOLE_OFI_LIBRARY": "/nowhere/libfabric.so.1"}, "/nowhere/libfabric.so.1"),
        ({"FARANDOLE_TRANSPORT": TCP, "FARANDOLE_OFI_LIBRARY": "libm.so.6"}, "is not libfabric"),
        ({"FARANDOLE_TRANSPORT": TCP, "FARANDOLE_OFI_DEVICES": "eth77"}, "names eth77"),
    ],
)
def test_it_is_never_replaced_by_another_transport(environment, text):
    program = REPORT + "import farandole\nattempt(farandole.init)\n"
    code, output = run(program, **environment)
    assert code != 0 and text in output, output


def test_ranks_with_other_providers_get_an_error_that_names_both():
    program = (
        REPORT
        + """
if os.environ["FARANDOLE_RANK"] == "1":
    os.environ["FI_PROVIDER"] = "udp,ofi_rxd"
import farandole
attempt(farandole.init)
"""
    )
    code, output = run(program, FARANDOLE_TRANSPORT="ofi", FI_PROVIDER="tcp,ofi_rxm,udp,ofi_rxd")
    assert code != 0 and re.search(r"rank \d \(.*\) has (tcp|udp)\S+ and rank \d \(.*\) has (tcp|udp)\S+", output), (
        output
    )


def test_ranks_that_differ_get_an_error_that_names_both():
    program = REPORT + START + 'attempt(lambda: comm.allreduce(np.ones(100 + 9000 * (comm.rank == 1)), op="sum"))\n'
    code, output = run(program, FARANDOLE_TRANSPORT=TCP)
    assert code != 0 and re.search(r"MismatchError: .*rank 0 .*rank 1|MismatchError: .*rank 1 .*rank 0", output), output


LOOP = (
    REPORT
    + START
    + """
import time
begun = time.monotonic()
def work():
    while True:
        comm.allreduce(np.ones(300000, "float32"), op="sum")
        if time.monotonic() - begun > 0.5 and r == int(os.environ["VICTIM"]):
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
attempt(work)
"""
)


@pytest.mark.parametrize("provider", [TCP, UDP])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_is_named_by_the_others(victim, provider):
    code, output = run(LOOP, 3, FARANDOLE_TRANSPORT=provider, VICTIM=str(victim), SIGNAL=str(int(signal.SIGKILL)))
    assert code != 0
    assert len(re.findall(rf"PeerLostError: rank {victim} ", output)) >= 1, output


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_rank_is_named_within_seconds(victim):
    begun = time.monotonic()
    code, output = run(LOOP, 3, FARANDOLE_TRANSPORT=TCP, VICTIM=str(victim), SIGNAL=str(int(signal.SIGSTOP)),
                       FARANDOLE_LOST_AFTER_S="2")  # fmt: skip
    assert code != 0 and re.search(rf"rank {victim} ", output), output
    assert time.monotonic() - begun < 60


WRITING = (
    REPORT
    + START
    + """
import signal, threading
tensor = np.ones(16 << 20, "float32")
def work():
    comm.broadcast(tensor, root=1)
    if r == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    while True:
        comm.broadcast(tensor, root=1)
attempt(work)
"""
)


def test_a_rank_stopped_in_the_middle_of_a_write_ends_no_other():
    code, output = run(WRITING, 3, FARANDOLE_TRANSPORT=TCP, FARANDOLE_LOST_AFTER_S="1")
    assert code != 0 and "Segmentation" not in output, output
    assert len(re.findall(r"PeerLostError: rank 1 ", output)) >= 2, output
