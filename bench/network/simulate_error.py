"""Compares measured with simulated times for simulate.sh.

python simulate_error.py HOSTS MEASURED SIMULATED ROWS   prints a line for each size and appends it to ROWS
python simulate_error.py summary ROWS                    prints the largest error; the code is 1 if it is above 15 %
"""

import json
import sys

ASKED_PERCENT = 15


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def print_link(ping, transfer):
    (ping,), (transfer,) = lines_of(ping), lines_of(transfer)
    speed = transfer["bytes"] / transfer["time_us_median"] * 1e6
    print(f"{speed / 1e3:.3f}kB,{ping['time_us_median']:.3f}us,0us")


def least_disturbed(rows):
    """Of the rounds of each size, the one with the least median."""
    best = {}
    for row in rows:
        if row["bytes"] not in best or row["time_us_median"] < best[row["bytes"]]["time_us_median"]:
            best[row["bytes"]] = row
    return best.values()


def compare(hosts, measured, simulated, rows):
    expected = {row["bytes"]: row["time_us"] for row in lines_of(simulated)}
    with open(rows, "a") as file:
        for row in least_disturbed(lines_of(measured)):
            size, took = row["bytes"], row["time_us_median"]
            error = 100 * (expected[size] - took) / took
            print(
                f"{hosts} hosts {row['algorithm']:20} {size:9} B  measured {took:11.0f} us "
                f"(min {row['time_us_min']:11.0f})  simulated {expected[size]:11.0f} us  error {error:+6.1f} %",
                flush=True,
            )
            point = {"hosts": int(hosts), "algorithm": row["algorithm"], "bytes": size, "measured_us": took}
            point |= {"measured_min_us": row["time_us_min"], "simulated_us": expected[size], "error_percent": error}
            file.write(json.dumps(point) + "\n")


def summarise(rows):
    errors = sorted(abs(row["error_percent"]) for row in lines_of(rows))
    over = sum(error > ASKED_PERCENT for error in errors)
    print(
        f"{len(errors)} points: median error {errors[len(errors) // 2]:.1f} %, largest {errors[-1]:.1f} %, "
        f"{over} above {ASKED_PERCENT} %"
    )
    return 1 if over else 0


if __name__ == "__main__":
    if sys.argv[1] == "summary":
        sys.exit(summarise(sys.argv[2]))
    if sys.argv[1] == "link":
        sys.exit(print_link(*sys.argv[2:]))
    compare(*sys.argv[1:])
