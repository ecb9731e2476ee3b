"""A rank that lives but does not make a communicator or group with the others is named by all of them, and no other."""

import itertools
import json
import re
import time

import farandole
import numpy as np
import pytest
from launch import launch
from limits import allowed

START_TIMEOUT_S = 3
NAMED = re.compile(r"^ranks? ([\d, and]+) on ")


def _make(kind, group):
    if kind == "communicator":
        return farandole.Communicator()
    return group.split(0) if kind == "split" else farandole.Group(range(farandole.size()))


def _error_of(kind, group):
    try:
        _make(kind, group)
    except farandole.Error as error:
        return {"class": type(error).__name__, "text": error.text, "culprit": error.culprit_rank}
    return None


def _gather(words, one):
    """Returns the object `one` of every rank. It uses an ordered communicator, in which no late rank is reported."""
    mine = np.zeros(2000, np.uint8)
    encoded = json.dumps(one).encode()
    mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    everything = words.allgather(mine).reshape(farandole.size(), mine.size)
    return [json.loads(bytes(row).rstrip(b"\0")) for row in everything]


def _check(errors, missing):
    """All ranks, the late ones too, have one error. It names those that did not come, and the first one as culprit."""
    for rank, error in enumerate(errors):
        where = f"rank {rank} without {missing}: {errors}"
        assert error is not None and error["class"] == "TimeoutError", where
        named = NAMED.match(error["text"])
        assert named and tuple(map(int, re.findall(r"\d+", named[1]))) == missing, where
        assert error["culprit"] == missing[0], where
        assert (error["text"], error["culprit"]) == (errors[0]["text"], errors[0]["culprit"]), where


def comes_late():
    farandole.init()
    size = farandole.size()
    words = farandole.Communicator()
    group = farandole.Group(range(size))
    kinds = ["communicator", "group", "split"]
    cases = list(itertools.product(kinds, [(0,), (1,)]))
    if size > 2:
        sets = [(0,), (1,), (2,)] if size == 3 else [(0,), (4,), (0, 2), (1, 3), (3, 4)]
        cases = list(zip(itertools.cycle(kinds), sets, strict=False))
    for kind, missing in cases:
        error = None
        is_missing = farandole.rank() in missing
        began = time.monotonic()
        if not is_missing:
            error = _error_of(kind, group)
        others = _gather(words, error)
        if is_missing:
            error = _error_of(kind, group)
        elapsed_s = time.monotonic() - began
        errors = _gather(words, error)
        _check(errors, missing)
        assert [one for rank, one in enumerate(others) if rank not in missing] == [
            one for rank, one in enumerate(errors) if rank not in missing
        ]
        # A rank that comes late has the others' error at once.
        assert elapsed_s < allowed(3 * START_TIMEOUT_S), elapsed_s
        # The next one is made.
        made = _make(kind, group)
        ones = np.ones(3)
        total = (
            made.allreduce(ones)
            if kind == "communicator"
            else farandole.allreduce(ones, name=f"{kind} {missing}", op=farandole.Op.SUM, group=made)
        )
        assert (total == size).all()
    print("NAMED")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_rank_that_does_not_come_is_named_by_all_and_no_other(size, transport):
    environment = {"FARANDOLE_TRANSPORT": transport, "FARANDOLE_START_TIMEOUT_S": str(START_TIMEOUT_S)}
    outputs = launch(size, comes_late, environment, deadline_s=240)
    assert all("NAMED" in output for output in outputs)
