"""Prints what one rank of a world pays for the world, and for each further communicator and group.

    python bench/scale/groups.py [--build build] [--ranks "2 8 32 64"] [--transports "auto tcp"] [--count 4]

The ranks are processes on this machine. `each` is the time of the slowest rank; the other columns are medians over the
ranks, and `sent,all` and `most` the sum and the most of them. The kinds are of one rank, for all objects together.
`used` and `summed` are what the first sum on each communicator and group adds. `sent` and `recv` are segments on the
connection to the coordinator, which rank 0 serves, and `recv,B` the bytes that it brought. A split makes two groups.
"""

import argparse
import os
import statistics
import subprocess
import sys

import ranks


def run(program, size, transport, count):
    command = [program, str(count), str(count)]
    processes = ranks.start(command, size, subprocess.PIPE, transport=transport, start_timeout_s=120)
    try:
        lines = [line for one in processes for line in one.communicate(timeout=300)[0].decode().splitlines()]
    finally:
        ranks.kill(processes)
    return [line.split() for line in lines if line.startswith("COST ")], [
        line for line in lines if not line.startswith("COST ")
    ]


def print_rows(size, transport, costs):
    for kind in ("world", "comm", "used", "group", "summed", "split"):
        rows = [cost[2:] for cost in costs if cost[1] == kind]
        if len(rows) != size:
            print(f"{size:6} {transport:>9} {kind:>7} only {len(rows)} ranks came")
            continue
        numbers = [[float(word) / float(row[1]) for word in row[2:8]] for row in rows]
        seconds, kib, sent, received, received_bytes, fds = zip(*numbers)
        middle = sorted(rows, key=lambda row: int(row[7]))[len(rows) // 2]
        row = f"{size:6} {transport:>9} {kind:>7} {max(seconds) * 1e3:9.2f} {statistics.median(kib):8.0f} "
        row += f"{statistics.median(sent):6.1f} {statistics.median(received):6.1f} "
        row += f"{statistics.median(received_bytes):8.0f} {sum(sent):7.0f} "
        row += f"{statistics.median(fds):7.1f} {max(fds):7.1f}  {' '.join(middle[8:])} / {middle[1]}"
        print(row, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--ranks", default="2 8 32 64")
    parser.add_argument("--transports", default="auto tcp")
    parser.add_argument("--count", type=int, default=4)
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "bin", "groups_rank")
    if not os.access(program, os.X_OK):
        sys.exit("groups.py: build it with -DFARANDOLE_BENCH=ON --target groups_rank")
    columns = "ranks transport what each,ms KiB sent recv recv,B sent,all fds most kinds".split()
    print("{:>6} {:>9} {:>7} {:>9} {:>8} {:>6} {:>6} {:>8} {:>7} {:>7} {:>7}  {}".format(*columns))
    failed = False
    for transport in arguments.transports.split():
        for size in map(int, arguments.ranks.split()):
            costs, others = run(program, size, transport, arguments.count)
            print_rows(size, transport, costs)
            for line in others[:4]:
                print("      ", line)
            failed |= bool(others)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
