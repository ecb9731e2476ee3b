"""How long survivors of a killed rank need until their first right sum, in the same processes.

    python bench/recovery.py                         both ways of recovery, 2 to 8 ranks, shm and tcp: p50 and largest
    python bench/recovery.py --ranks 4 --kills 20 --transports tcp --ways elastic

The victim notes the time (CLOCK_MONOTONIC) and kills itself. Each survivor notes when it has the first sum of the new
world, and compares the sum with the one that the survivors must have. A measurement is the time of the last survivor.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

FARANDOLE = os.environ.get("FARANDOLE", "farandole")


def say(**facts):
    print("SAYS " + json.dumps(facts), flush=True)


def die():
    say(killed=time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)


def elastic_rank(victim):
    """One step after another; the victim of the first generation kills itself in step 20."""
    import farandole
    import numpy as np
    from farandole import elastic

    worker = int(os.environ["FARANDOLE_WORKER"])
    farandole.init()
    state = elastic.ObjectState(step=0)
    first_size = farandole.size()

    @elastic.run
    def steps(state):
        size = farandole.size()
        total = int(farandole.allreduce(np.array([1], np.int64), name="one", op=farandole.SUM)[0])
        if size < first_size:
            say(recovered=time.monotonic(), right=total == size == first_size - 1)
            return
        while state.step < 1000:
            if worker == victim and state.step == 20:
                die()
            farandole.allreduce(np.array([1], np.int64), name="one", op=farandole.SUM)
            state.step += 1
            state.commit()

    steps(state)


def shrink_rank(victim):
    import farandole
    import numpy as np

    farandole.init()
    size = farandole.size()
    for step in range(1000):
        if farandole.rank() == victim and step == 20:
            die()
        try:
            farandole.allreduce(np.array([1], np.int64), name="one", op=farandole.SUM)
        except farandole.PeerLostError:
            break
    farandole.shrink()
    total = int(farandole.allreduce(np.array([1], np.int64), name="one", op=farandole.SUM)[0])
    say(recovered=time.monotonic(), right=total == farandole.size() == size - 1)
    farandole.shutdown()


def one_elastic(ranks, transport, victim):
    command = [FARANDOLE, "run", "-np", str(ranks), "--min-np", str(max(1, ranks - 1)), sys.executable, __file__,
               "--as", "elastic", str(victim)]  # fmt: skip
    variables = dict(os.environ, FARANDOLE_TRANSPORT=transport, OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    return done.stdout, done.stderr


def one_shrink(ranks, transport, victim):
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ, FARANDOLE_TRANSPORT=transport, OMP_NUM_THREADS="1", FARANDOLE_SIZE=str(ranks),
                         FARANDOLE_RENDEZVOUS=f"file://{folder}/place")  # fmt: skip
        command = [sys.executable, __file__, "--as", "shrink", str(victim)]
        all_ranks = [
            subprocess.Popen(command, env=dict(variables, FARANDOLE_RANK=str(rank)), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
            for rank in range(ranks)
        ]  # fmt: skip
        outputs = [one.communicate(timeout=120) for one in all_ranks]
    return "".join(out for out, _ in outputs), "".join(err for _, err in outputs)


def measure(way, ranks, transport, victim):
    """Seconds from the signal to the last survivor's first right sum."""
    output, errors = {"elastic": one_elastic, "shrink": one_shrink}[way](ranks, transport, victim)
    said = [json.loads(line.split("SAYS ")[1]) for line in output.splitlines() if "SAYS " in line]
    killed = [one["killed"] for one in said if "killed" in one]
    recovered = [one for one in said if "recovered" in one]
    if len(killed) != 1 or len(recovered) != ranks - 1 or not all(one["right"] for one in recovered):
        sys.exit(f"{way}, {ranks} ranks, {transport}, victim {victim}: no right sum of all survivors\n{output}{errors}")
    return max(one["recovered"] for one in recovered) - killed[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--as", dest="role", nargs=2, metavar=("WAY", "VICTIM"), help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(range(2, 9)))
    parser.add_argument("--transports", nargs="+", default=["shm", "tcp"])
    parser.add_argument("--ways", nargs="+", default=["elastic", "shrink"], choices=["elastic", "shrink"])
    parser.add_argument("--kills", type=int, default=10, help="measurements of each line; victims take turns")
    given = parser.parse_args()
    if given.role:
        return {"elastic": elastic_rank, "shrink": shrink_rank}[given.role[0]](int(given.role[1]))
    print("way      transport  ranks   p50 s   max s")
    for way in given.ways:
        for transport in given.transports:
            for ranks in given.ranks:
                times = [measure(way, ranks, transport, kill % ranks) for kill in range(given.kills)]
                print(f"{way:8} {transport:9} {ranks:6} {statistics.median(times):7.3f} {max(times):7.3f}", flush=True)


if __name__ == "__main__":
    main()
