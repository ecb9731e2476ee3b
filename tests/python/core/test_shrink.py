"""Ranks are lost, and the others make a world of themselves in the same processes."""

import os
import random
import secrets
import signal
import time

import farandole
import numpy as np
import pytest
from launch import Launched
from limits import allowed

STEPS = 10_000_000


def _say(word, *fields):
    # In one piece: the library writes its log to the same file.
    os.write(1, ("\t".join(map(str, (word, *fields))) + "\n").encode())


def _sum(value):
    return int(farandole.allreduce(np.array([value], np.int64), name="sum", op=farandole.SUM)[0])


def _named():
    _sum(1)


def _ordered():
    comm = farandole.Communicator()
    values = np.ones(100_000, np.float32)
    while True:
        comm.allreduce(values)


def _groups():
    with farandole.Communicator():
        pass


KINDS = {"named": _named, "ordered": _ordered, "groups": _groups}


def _until_lost(step):
    try:
        for turn in range(STEPS):
            step()
            if turn == 20:
                _say("READY", farandole.size())
    except farandole.PeerLostError as error:
        return error
    raise AssertionError("no rank was lost")


def _shrink(number):
    while True:
        farandole.shrink()
        try:
            _say("WORLD", farandole.rank(), farandole.size(), _sum(1 << number))
            return
        except farandole.PeerLostError as error:  # another rank was lost when its world had been made
            _say("LOST", error.culprit_rank, error.text)


def survives():
    """Works until ranks are lost, shrinks, and so on until FDL_TEST_LEFT ranks are left. Then all work until told."""
    farandole.init()
    number = farandole.rank()
    kind, left = os.environ["FDL_TEST_KIND"], int(os.environ["FDL_TEST_LEFT"])
    if kind == "ordered":
        _say("READY", farandole.size())
    while farandole.size() > left:
        error = _until_lost(KINDS[kind])
        _say("LOST", error.culprit_rank, error.text)
        try:
            _shrink(number)
        except farandole.Error as failure:
            _say("FAILED", failure.code, failure.culprit_rank, failure.text)
            return
    told = os.environ["FDL_TEST_TOLD"]
    while farandole.allreduce(np.array([os.path.exists(told)], np.int64), name="told", op=farandole.MIN)[0] == 0:
        assert _sum(1 << number) < 1 << 20
        time.sleep(0.002)
    _say("LAST", farandole.rank(), farandole.size(), _sum(1 << number))


class Shrinking(Launched):
    """A job of `size` ranks that run survives() and are to be `left` in the end."""

    def __init__(self, size, left, kind="named", **variables):
        self.told = f"/tmp/farandole-told-{secrets.token_hex(8)}"
        rendezvous = f"unix:@farandole-test-{secrets.token_hex(8)}" if variables.pop("unix", False) else None
        environment = {"FDL_TEST_KIND": kind, "FDL_TEST_LEFT": str(left), "FDL_TEST_TOLD": self.told,
                       "FARANDOLE_LOST_AFTER_S": "1", "FARANDOLE_LOG_LEVEL": "info", **variables}  # fmt: skip
        super().__init__(size, __name__, ["survives"], environment, rendezvous=rendezvous)

    def until(self, word, ranks, count=1, deadline_s=40):
        end = time.monotonic() + allowed(deadline_s)
        for rank in ranks:
            while len(self.said(rank, word)) < count:
                assert time.monotonic() < end, f"rank {rank} did not say {word} {count} times\n{self.report()}"
                assert self.ranks[rank].process.poll() is None, self.report()
                time.sleep(0.005)

    def said(self, rank, word):
        lines = self.ranks[rank].output.splitlines()
        return [line.split("\t")[1:] for line in lines if line.startswith(word + "\t")]

    def send(self, signal_number, *ranks):
        for rank in ranks:
            self.ranks[rank].process.send_signal(signal_number)

    def finish(self, ranks):
        """Ends the work of `ranks`, whose last world has exactly them, in their order."""
        with open(self.told, "w"):
            pass
        try:
            for rank in ranks:
                assert self.ranks[rank].process.wait(allowed(40)) == 0, self.report()
        finally:
            os.unlink(self.told)
        bits = sum(1 << rank for rank in ranks)
        expected = [[str(place), str(len(ranks)), str(bits)] for place in range(len(ranks))]
        assert [(self.said(rank, "LAST") or [""])[-1] for rank in ranks] == expected, self.report()


def _left(size, *lost):
    return [rank for rank in range(size) if rank not in lost]


# ---- Losses ----------------------------------------------------------------------------------------------------------


# Rank 0 serves the coordinator. The survivors may be one.
@pytest.mark.parametrize("victims", [(0,), (2,), (3,), (0, 1), (1, 3), (0, 2, 3)], ids=str)
@pytest.mark.parametrize("kind", ["named", "ordered", "groups"])
def test_killed_ranks_are_left_out(kind, victims):
    transport, unix = ("shm", True) if len(victims) % 2 else ("tcp", False)
    left = _left(4, *victims)
    with Shrinking(4, len(left), kind, FARANDOLE_TRANSPORT=transport, unix=unix) as job:
        job.until("READY", range(4))
        job.send(signal.SIGKILL, *victims)
        job.until("WORLD", left)
        job.finish(left)


# Rank 0 of each world lists the locations.
def test_survivors_keep_their_locations_where_the_topology_file_is_gone(tmp_path):
    topology = tmp_path / "topology"
    topology.write_text("* zone-a/rack-3\n")
    line = "locations of hosts in the network: zone-a/rack-3\n"
    with Shrinking(3, 2, FARANDOLE_TOPOLOGY=str(topology)) as job:
        job.until("READY", range(3))
        topology.unlink()
        job.send(signal.SIGKILL, 0)
        job.until("WORLD", [1, 2])
        job.finish([1, 2])
        assert [job.ranks[rank].output.count(line) for rank in range(3)] == [1, 1, 0], job.report()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("transport, unix", [("shm", True), ("tcp", False)])
def test_a_stopped_rank_is_left_out_and_disturbs_nobody_when_it_wakes(transport, unix, victim):
    left = _left(3, victim)
    with Shrinking(3, 2, FARANDOLE_TRANSPORT=transport, unix=unix) as job:
        job.until("READY", range(3))
        job.send(signal.SIGSTOP, victim)
        job.until("WORLD", left)
        job.send(signal.SIGCONT, victim)
        job.ranks[victim].process.wait(allowed(20))
        (failed,) = job.said(victim, "FAILED")
        assert failed[:2] == ["PEER_LOST", str(victim)], job.report()
        assert f"rank {victim} on " in failed[2] and "is not in the new world" in failed[2], failed
        job.finish(left)


def test_a_stopped_rank_that_wakes_after_the_others_have_ended_does_not_go_on_alone():
    with Shrinking(3, 2) as job:
        job.until("READY", range(3))
        job.send(signal.SIGSTOP, 0)
        job.until("WORLD", [1, 2])
        job.finish([1, 2])
        job.send(signal.SIGCONT, 0)
        job.ranks[0].process.wait(allowed(20))
        assert [one[:2] for one in job.said(0, "FAILED")] == [["PEER_LOST", "0"]], job.report()


@pytest.mark.parametrize("order", [(0, 1, 2), (3, 0, 2)], ids=str)
def test_worlds_shrink_again_and_again(order):
    with Shrinking(4, 1, unix=order[0] == 0) as job:
        job.until("READY", range(4))
        for number, victim in enumerate(order):
            job.send(signal.SIGKILL, victim)
            left = _left(4, *order[: number + 1])
            job.until("WORLD", left, number + 1)
            if number < 2:
                job.until("READY", left, number + 2)
        job.finish(left)


# The second loss comes while the others notice the first one, meet, or start their world.
@pytest.mark.parametrize("seed", range(6))
def test_a_loss_during_shrink_leaves_a_world_of_the_others(seed):
    dice = random.Random(seed)
    first, second = dice.sample(range(5), 2)
    left = _left(5, first, second)
    with Shrinking(5, 3, FARANDOLE_TRANSPORT=dice.choice(["shm", "tcp"]), unix=dice.random() < 0.5) as job:
        job.until("READY", range(5))
        job.send(signal.SIGKILL, first)
        time.sleep(dice.uniform(0, 0.05))
        job.send(signal.SIGKILL, second)
        job.finish(left)


@pytest.mark.parametrize("second", [1, 3])
def test_a_rank_that_stops_during_shrink_is_left_out(second):
    """Rank 1 would serve the new world. It stops before it has noticed the loss, or after."""
    left = _left(4, 0, second)
    with Shrinking(4, 2) as job:
        job.until("READY", range(4))
        job.send(signal.SIGKILL, 0)
        job.until("WORLD", [second])
        job.send(signal.SIGSTOP, second)
        job.finish(left)


# ---- Without a loss, and refusals ------------------------------------------------------------------------------------


def _open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def shrinks_without_a_loss():
    farandole.init()
    number, size = farandole.rank(), farandole.size()
    comm = farandole.Communicator()
    group = farandole.Group(list(range(size)))
    handle = farandole.allreduce_async(np.ones(1), name="never") if number == 0 else None
    farandole.shrink()
    assert (farandole.rank(), farandole.size()) == (number, size)
    for old in (lambda: comm.allreduce(np.ones(1)), lambda: farandole.allreduce(np.ones(1), group=group)):
        with pytest.raises(farandole.ShutDownError):
            old()
    if handle is not None:
        with pytest.raises(farandole.ShutDownError):
            handle.wait()
    handle = comm = group = None  # ends them, with their descriptors
    counts = []
    for _ in range(12):
        farandole.shrink()
        assert _sum(1 << number) == (1 << size) - 1
        counts.append(_open_descriptors())
    # A connection that a coordinator has accepted and not yet refused comes and goes.
    assert max(counts[6:]) <= max(counts[:6]) + 2, counts


def test_without_a_loss_the_new_world_has_the_same_ranks():
    with Launched(3, __name__, ["shrinks_without_a_loss"]) as job:
        assert [rank.code for rank in job.wait().ranks] == [0] * 3, job.report()


def one_comes_too_late():
    farandole.init()
    if farandole.rank() == int(os.environ["FDL_TEST_LATE"]):
        time.sleep(5)
    begin = time.monotonic()
    with pytest.raises(farandole.TimeoutError) as caught:
        farandole.shrink(timeout=1)
    _say("TEXT", caught.value.text)
    assert time.monotonic() - begin < 20
    with pytest.raises(farandole.NotInitializedError):
        farandole.rank()


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_does_not_call_is_named_by_all(late):
    with Launched(3, __name__, ["one_comes_too_late"], {"FDL_TEST_LATE": str(late)}) as job:
        assert [rank.code for rank in job.wait().ranks] == [0] * 3, job.report()
        texts = {line for rank in job.ranks for line in rank.output.splitlines() if line.startswith("TEXT")}
        assert len(texts) == 1 and f"rank {late} on " in texts.pop(), job.report()


def test_wrong_calls_are_refused(monkeypatch):
    with pytest.raises(farandole.NotInitializedError):
        farandole.shrink()
    with pytest.raises(farandole.InvalidArgumentError, match="seconds above 0"):
        farandole.shrink(timeout=0)
    farandole.init(rank=0, size=1)
    try:
        monkeypatch.setenv("FARANDOLE_ELASTIC", "unix:@unused")
        monkeypatch.setenv("FARANDOLE_WORKER", "0")
        with pytest.raises(farandole.UnsupportedError, match=r"farandole\.elastic\.run"):
            farandole.shrink()
        monkeypatch.delenv("FARANDOLE_ELASTIC")
        assert _sum(3) == 3  # nothing has changed
        farandole.shrink()
        assert (farandole.size(), _sum(3)) == (1, 3)
    finally:
        farandole.shutdown()
