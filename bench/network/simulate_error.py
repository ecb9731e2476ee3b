"""Compares measured with simulated times for simulate.sh.

python simulate_error.py link PING TRANSFER              prints the link that was measured
python simulate_error.py packet BYTES LINK               prints the time of a packet on it
python simulate_error.py HOSTS MEASURED SIMULATED ROWS   prints a line for each size and appends it to ROWS; SIMULATED
                                                         has each size twice: ranks in step, and one late by a packet
python simulate_error.py summary ROWS                    prints the largest errors; 1 if one with a late rank is
                                                         above 15 %
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


def print_packet(size, link):
    speed = float(link.split(",")[0].removesuffix("kB")) * 1e3
    print(f"{int(size) / speed * 1e6:.0f}us")


def least_disturbed(rows):
    """Of the rounds of each size, the one with the least median."""
    best = {}
    for row in rows:
        if row["bytes"] not in best or row["time_us_median"] < best[row["bytes"]]["time_us_median"]:
            best[row["bytes"]] = row
    return best.values()


def compare(hosts, measured, simulated, rows):
    expected = {}
    for row in lines_of(simulated):
        expected.setdefault(row["bytes"], []).append(row["time_us"])
    with open(rows, "a") as file:
        for row in least_disturbed(lines_of(measured)):
            size, took = row["bytes"], row["time_us_median"]
            in_step, late = expected[size]
            errors = [100 * (one - took) / took for one in (in_step, late)]
            print(
                f"{hosts} hosts {row['algorithm']:20} {size:9} B  measured {took:9.0f} us "
                f"(min {row['time_us_min']:9.0f})  in step {in_step:9.0f} us, {errors[0]:+6.1f} %  "
                f"late {late:9.0f} us, {errors[1]:+6.1f} %",
                flush=True,
            )
            point = {"hosts": int(hosts), "algorithm": row["algorithm"], "bytes": size, "measured_us": took}
            point |= {"measured_min_us": row["time_us_min"], "in_step_us": in_step, "late_us": late}
            file.write(json.dumps(point | {"in_step_percent": errors[0], "late_percent": errors[1]}) + "\n")


def summarise(kind, errors):
    """Prints a line, and returns how many of the errors are too large."""
    errors = sorted(map(abs, errors))
    over = sum(error > ASKED_PERCENT for error in errors)
    print(
        f"{kind}: {len(errors)} points, median error {errors[len(errors) // 2]:.1f} %, largest {errors[-1]:.1f} %, "
        f"{over} above {ASKED_PERCENT} %"
    )
    return over


def print_summary(rows):
    points = lines_of(rows)
    summarise("in step", [point["in_step_percent"] for point in points])
    return 1 if summarise("late", [point["late_percent"] for point in points]) else 0


if __name__ == "__main__":
    if sys.argv[1] == "summary":
        sys.exit(print_summary(sys.argv[2]))
    if sys.argv[1] == "link":
        sys.exit(print_link(*sys.argv[2:]))
    if sys.argv[1] == "packet":
        sys.exit(print_packet(*sys.argv[2:]))
    compare(*sys.argv[1:])
