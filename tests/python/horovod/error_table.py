"""Prints the error of a program written for Horovod in each situation of the contract: row, situation, class, text.

PYTHONPATH=tests/python/support python tests/python/horovod/error_table.py
"""

import os
import signal
import sys
import time

import farandole
import horovod.torch as hvd
import test_horovod_errors as errors
from launch import checks_of, launch, require
from test_horovod_errors import INTERNAL, expect_error, ones

# Each row of the contract, and its situations.
CONTRACT = [
    ("rank()/size() before init", ["rank() before init", "size() before init"]),
    ("a collective before init", ["a collective before init", "barrier before init"]),
    ("after shutdown, or a peer shut down", ["a collective after shutdown", "another rank has shut down"]),
    ("a name in flight", ["a name that is in flight", "a group with a name that is in flight"]),
    ("dtype differs", ["types differ"]),
    ("kind differs", ["kinds differ"]),
    (
        "shape differs",
        [
            "shapes differ: allreduce",
            "shapes differ: adasum",
            "shapes differ: broadcast",
            "shapes differ: reducescatter",
        ],
    ),
    (
        "dimensions differ",
        ["dimensions differ: allgather", "rows differ in size: allgather", "rows differ in size: alltoall"],
    ),
    ("scaling differs", ["prescale differs", "postscale differs", "sum and average: reducescatter"]),
    ("reduction differs", ["reductions differ", "reductions differ: adasum"]),
    ("broadcast's root differs", ["roots differ"]),
    ("CPU and GPU", ["a group on two devices"]),
    ("no dimension: allgather, alltoall", ["no rows: allgather", "no rows: alltoall"]),
    ("no dimension: reducescatter", ["no rows: reducescatter"]),
    (
        "while a rank has joined",
        [f"{one} while others have joined" for one in ("allgather", "broadcast", "alltoall", "reducescatter")],
    ),
    (
        "reducescatter with another reduction",
        [f"reducescatter with {one}" for one in ("Min", "Max", "Product", "Adasum")],
    ),
    (
        "a bad root, no member, no such set",
        [
            "a root that is no rank",
            "a root outside the set",
            "a set that is not registered",
            "an operation of a set one is not in",
        ],
    ),
    (
        "alltoall's splits",
        ["splits of another type", "splits beyond the rows", "splits too many", "rows that do not divide"],
    ),
    ("type or layout", ["a type without rule", "not contiguous"]),
    ("a stall", ["a stall is reported"]),
    ("a stall that lasts", ["a stall is ended"]),
    ("a rank dies", ["another rank is killed"]),
    ("a timeline before init", ["start_timeline before init"]),
    ("a timeline that cannot be written", ["a timeline in a folder that is not there"]),
]


def shuts_down():
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 0:
        expect_error("a timeline in a folder that is not there", ValueError, ["cannot open", "No such file"],
             lambda: hvd.start_timeline("/nowhere/t.json"))  # fmt: skip
        expect_error("another rank has shut down", INTERNAL, ["rank 1"], lambda: hvd.allreduce(ones(2), name="late"))
    hvd.shutdown()
    expect_error("a collective after shutdown", INTERNAL, [], lambda: hvd.allreduce(ones(2)))


def dies():
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    error = expect_error("another rank is killed", INTERNAL, ["rank 1"], lambda: hvd.allreduce(ones(2), name="grad"))
    assert isinstance(error, farandole.PeerLostError) and error.culprit_rank == 1
    print(f"(raised after {time.monotonic() - begin:.2f} s)")


def stalls():
    hvd.init()
    apart = farandole.Communicator()  # its calls have no names and cannot stall
    if hvd.rank() == 0:
        expect_error(
            "a stall is ended", INTERNAL, ["allreduce.lonely", "rank 1"], lambda: hvd.allreduce(ones(2), name="lonely")
        )
    apart.barrier()


def rows_of(output):
    for line in output.splitlines():
        if line.startswith("ROW\t"):
            _, situation, kind, text = line.split("\t", 3)
            yield situation, (kind, text)
        elif "warning" in line and "allreduce.lonely" in line:
            yield "a stall is reported", ("(log, warning)", line.split(": ", 1)[1])


def all_rows():
    """{situation: (class, text)} of rank 0, else of rank 1."""
    outputs = list(require(errors, 2, checks_of(errors)[0]))
    outputs += launch(2, shuts_down)
    outputs += launch(2, dies, codes=[0, -signal.SIGKILL])
    outputs += launch(
        2, stalls, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5"}
    )
    rows = {}
    for output in outputs:
        for situation, told_so in rows_of(output):
            rows.setdefault(situation, told_so)
    return rows


def table():
    """[(row, situation, class, text)]; KeyError if a situation of the contract did not occur."""
    rows = all_rows()
    return [(row, situation, *rows[situation]) for row, situations in CONTRACT for situation in situations]


if __name__ == "__main__":
    sys.modules["error_table"] = sys.modules["__main__"]
    for name in (shuts_down, dies, stalls):
        name.__module__ = "error_table"
    print("| row | what happened | class | text |\n|---|---|---|---|")
    for line in table():
        print("| " + " | ".join(part.replace("|", "\\|") for part in line) + " |")
