"""Ranks that die, leave, do not arrive or are interrupted: the others name them within seconds."""

import builtins
import os
import signal
import threading
import time

import farandole
import numpy as np
import pytest
from expect import fails
from launch import launch


def one_rank_dies():
    farandole.init()
    if farandole.rank() == 1:
        farandole.barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    def goes_on():  # rank 1 may exit before the others have left the barrier
        farandole.barrier()
        farandole.allreduce(np.ones(4), name="orphan")

    begin = time.monotonic()
    error = fails(farandole.PeerLostError, "rank 1", action=goes_on)
    assert error.culprit_rank == 1 and error.culprit_host == farandole.info()["host"], error.fields()
    assert error.code == "PEER_LOST" and time.monotonic() - begin < 10


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_is_named(size, transport):
    codes = [0] * size
    codes[1] = -signal.SIGKILL
    launch(size, one_rank_dies, {"FARANDOLE_TRANSPORT": transport}, codes=codes)


def dies_between_ordered_calls():
    farandole.init()
    comm = farandole.Communicator()
    if farandole.rank() == 1:
        comm.allreduce(np.ones(4))
        os.kill(os.getpid(), signal.SIGKILL)
    error = fails(farandole.PeerLostError, "rank 1", action=lambda: [comm.allreduce(np.ones(4)) for _ in range(3)])
    assert error.culprit_rank == 1, error.fields()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_that_dies_is_named_in_order(transport):
    launch(3, dies_between_ordered_calls, {"FARANDOLE_TRANSPORT": transport}, codes=[0, -signal.SIGKILL, 0])


def aborts():
    farandole.init()
    comm = farandole.Communicator()
    if farandole.rank() == 1:
        comm.allreduce(np.ones(4))
        comm.abort("the data is wrong")
    error = fails(
        farandole.AbortedError, "the data is wrong", action=lambda: [comm.allreduce(np.ones(4)) for _ in range(3)]
    )
    assert error.culprit_rank == 1, error.fields()
    assert farandole.allreduce(np.ones(1))[0] == farandole.size()  # the world stays usable


def test_an_abort_reaches_all_ranks():
    launch(3, aborts)


def ends_after_an_abort():
    farandole.init()
    comm = farandole.Communicator()
    if farandole.rank() == 0:
        fails(farandole.AbortedError, "the data is wrong", action=lambda: comm.allreduce(np.ones(4)))
        os._exit(3)
    if farandole.rank() == 1:
        comm.abort("the data is wrong")
    error = fails(
        farandole.PeerLostError, "rank 0", "shortly before, communicator '", "' had failed: ",
        "rank 1", "the data is wrong", action=lambda: farandole.allreduce(np.ones(4), name="elsewhere")
    )  # fmt: skip
    assert error.culprit_rank == 0, error.fields()


def test_ranks_elsewhere_learn_why_a_program_has_ended():
    launch(3, ends_after_an_abort, codes=[3, 0, 0])


def in_flight_at_shutdown():
    farandole.init()
    farandole.barrier()
    if farandole.rank() == 0:
        handle = farandole.allreduce_async(np.ones(4), name="never")
        farandole.shutdown()
        fails(farandole.ShutDownError, "shut", action=handle.wait)
        fails(farandole.ShutDownError, "shut", action=handle.wait)  # a second wait raises the same
    else:
        fails(farandole.Error, action=lambda: farandole.allreduce(np.ones(4), name="late"))


def test_operations_in_flight_fail_at_shutdown():
    launch(2, in_flight_at_shutdown)


def starts_again():
    for turn in range(3):
        farandole.init(rendezvous=f"{os.environ['FARANDOLE_RENDEZVOUS']}.{turn}")
        assert farandole.allreduce(np.array([turn]))[0] == turn * farandole.size()
        farandole.barrier()
        farandole.shutdown()


def test_a_process_can_create_worlds_in_sequence(tmp_path):
    launch(3, starts_again, rendezvous=f"file://{tmp_path}/meet")


def nobody_comes():
    begin = time.monotonic()
    error = fails(farandole.TimeoutError, "1", action=farandole.init)
    assert isinstance(error, builtins.TimeoutError)
    assert time.monotonic() - begin < 20


def test_a_rank_that_does_not_arrive_is_named():
    launch(1, nobody_comes, {"FARANDOLE_SIZE": "2", "FARANDOLE_START_TIMEOUT_S": "2"})


def bad_options():
    fails(farandole.InvalidArgumentError, "no_such_knob", action=lambda: farandole.init(no_such_knob=1))
    fails(farandole.InvalidArgumentError, "lots", action=lambda: farandole.init(fusion_bytes="lots"))
    farandole.init(fusion_bytes="1M", deterministic=True)
    assert "fusion_bytes" in farandole.config()


def test_a_bad_option_is_quoted():
    launch(1, bad_options)


def quotes_other_bytes_than_utf_8():
    fails(farandole.InvalidArgumentError, "/no/such/\\xff\u20ac", action=farandole.init)
    assert "/no/such/\\xff\u20ac" in farandole.config()


def test_a_text_of_an_error_may_quote_other_bytes_than_utf_8():
    launch(1, quotes_other_bytes_than_utf_8, {"FARANDOLE_TUNING": "/no/such/\udcff\u20ac"})


def interrupted():
    farandole.init()
    farandole.barrier()
    if farandole.rank() == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        handle = farandole.allreduce_async(np.ones(2), name="interrupted")
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        assert time.monotonic() - begin < 5
        farandole.barrier()
    else:
        farandole.barrier()
        assert farandole.allreduce(np.ones(2), name="interrupted")[0] == farandole.size()
    farandole.barrier()


def test_ctrl_c_ends_a_wait():
    launch(2, interrupted)


def makes_beside_shutdown():
    """Two threads of each rank make and free what needs the other ranks, until another thread shuts down."""
    makers = {
        "group": lambda: farandole.Group(range(farandole.size())),
        "communicator": farandole.Communicator,
        "split": lambda: farandole.world_group().split(0),
    }
    make = makers[os.environ["WHAT"]]
    ends = []
    made = threading.Semaphore(0)

    def until_the_end():
        try:
            while True:
                make().free()
                made.release()
        except (farandole.Error, farandole.NotInitializedError) as error:
            ends.append(error.code)

    farandole.init()
    threads = [threading.Thread(target=until_the_end) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert made.acquire(timeout=60)
    farandole.shutdown()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    # The thread of another rank may make something else meanwhile, which is the error of both.
    assert set(ends) <= {"SHUT_DOWN", "NOT_INITIALIZED", "PEER_LOST"}, ends


@pytest.mark.parametrize("what", ["group", "communicator", "split"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_is_made_beside_shutdown_ends_in_order(transport, what):
    launch(2, makes_beside_shutdown, {"FARANDOLE_TRANSPORT": transport, "WHAT": what})
