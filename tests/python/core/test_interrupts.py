"""Ctrl-C in a blocked ordered call raises KeyboardInterrupt, and the other ranks get the reason."""

import os
import signal
import threading
import time

import farandole
import numpy as np
import pytest
from expect import fails
from launch import launch

LARGE = 2 << 20


def _interrupted(action):
    """Runs `action`, which blocks, and sends SIGINT to this process meanwhile. Returns the seconds until it ended."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        action()
    return time.monotonic() - begin


def _send(comm):
    comm.send(np.ones(LARGE), 1)


def _recv(comm):
    comm.recv(np.empty(1), 1)


def _allreduce(comm):
    comm.allreduce(np.ones(3))


def _barrier(comm):
    comm.barrier()


def _request(comm):
    comm.iallreduce(np.ones(3)).wait()


ACTIONS = {"send": _send, "recv": _recv, "allreduce": _allreduce, "barrier": _barrier, "request": _request}


def interrupts():
    action = ACTIONS[os.environ["BLOCKED_IN"]]
    farandole.init()
    comm = farandole.Communicator()
    if farandole.rank() == 0:
        assert _interrupted(lambda: action(comm)) < 10
        fails(farandole.AbortedError, "ended earlier", "interrupted", action=comm.barrier)
    farandole.barrier()  # the others begin when rank 0 has been interrupted
    if farandole.rank() == 1:
        # Another collective could be a mismatch, found before the news of the interrupt is here.
        same = _barrier if action in (_send, _recv) else action
        words = ("rank 0", "its program was interrupted while")
        fails(farandole.AbortedError, *words, action=lambda: [same(comm) for _ in range(3)])
    farandole.barrier()  # the world goes on


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("name", ACTIONS)
def test_ctrl_c_ends_a_blocked_call(name, transport):
    launch(2, interrupts, {"FARANDOLE_TRANSPORT": transport, "BLOCKED_IN": name})


SET_UPS = {"group": lambda: farandole.Group([0, 1]), "communicator": lambda: farandole.Communicator()}


def waits_for_a_world():
    if os.environ["FARANDOLE_RANK"] == "0":
        assert _interrupted(farandole.init) < 10
        assert not farandole.is_initialized()


def waits_for_a_set_up():
    """Rank 1 makes nothing until rank 0 has been interrupted, and then gets the reason."""
    make = SET_UPS[os.environ["BLOCKED_IN"]]
    mark = os.environ["MARK"]
    farandole.init()
    if farandole.rank() == 0:
        assert _interrupted(make) < 10
        open(mark, "w").close()
    else:
        while not os.path.exists(mark):
            time.sleep(0.05)
        words = ("rank 0", "its program was interrupted while it waited for the other ranks")
        fails(farandole.AbortedError, *words, action=make)
    farandole.barrier()  # the world goes on


def test_ctrl_c_ends_init():
    launch(2, waits_for_a_world)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("what", SET_UPS)
def test_ctrl_c_ends_a_set_up(what, transport, tmp_path):
    variables = {"FARANDOLE_TRANSPORT": transport, "BLOCKED_IN": what, "MARK": str(tmp_path / "interrupted")}
    launch(2, waits_for_a_set_up, variables)


def handles_a_signal():
    """A handler that returns leaves the call blocked; it must run meanwhile."""
    farandole.init()
    comm = farandole.Communicator()
    if farandole.rank() == 0:
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert (comm.allreduce(np.ones(1)) == [2.0]).all()
        assert len(seen) == 1
    else:
        time.sleep(2)
        assert (comm.allreduce(np.ones(1)) == [2.0]).all()


def test_a_signal_handler_that_returns_does_not_end_the_call():
    launch(2, handles_a_signal)


def waits_for_itself():
    farandole.init()
    comm = farandole.Communicator()
    me = farandole.rank()
    fails(farandole.InvalidArgumentError, "would wait for itself", "irecv", action=lambda: comm.send(np.ones(2), me))
    fails(farandole.InvalidArgumentError, "isend", action=lambda: comm.recv(np.ones(2), me))
    out = np.zeros(2)
    request = comm.irecv(out, me)
    comm.send(np.full(2, 7.0), me)
    assert (request.wait() == 7).all()
    fails(farandole.TimeoutError, action=lambda: comm.recv(out, 1 - me, timeout=0.2))


def test_messages_to_the_own_rank_and_timeouts_of_messages():
    launch(2, waits_for_itself)
