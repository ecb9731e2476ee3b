"""Draws two pictures of the results of compare.py: time over bytes, one line for each library, one field for each
number of ranks.

python pictures.py results.json FOLDER
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

STYLES = {
    "farandole": ("#d1495b", "-", "o", 2.6),
    "farandole, fdl_alloc": ("#edae49", "-", "o", 1.8),
    "Open MPI": ("#00798c", "-", "s", 1.5),
    "Open MPI, CMA": ("#00798c", "-", "s", 1.5),
    "Open MPI, no CMA": ("#5fb3c1", "-", "s", 1.5),
    "MPICH": ("#30638e", "-", "^", 1.5),
    "Gloo": ("#8d6a9f", "-", "D", 1.5),
    "memcpy": ("#444444", ":", "", 1.5),
    "bare sockets": ("#444444", ":", "", 1.5),
}
NAMES = {"memcpy": "limit: memcpy, all ranks at once", "bare sockets": "limit: bare sockets, same bytes"}
# For smaller sizes a copy is no useful limit, and with more ranks than cores bare sockets measure the scheduler.
LIMITS_FROM = {"memcpy": 64 << 10, "bare sockets": 1 << 20}
TICKS = [4, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20]


def size_text(bytes_):
    for unit, name in ((1 << 20, "M"), (1 << 10, "K")):
        if bytes_ >= unit:
            return f"{bytes_ // unit} {name}"
    return str(bytes_)


def time_text(us, _=None):
    for unit, name in ((1e6, "s"), (1e3, "ms"), (1, "µs")):
        if us >= unit:
            return f"{us / unit:g} {name}"
    return f"{us:g} µs"


def draw_field(axes, rows, title, crowded):
    by_library = {}
    for row in rows:
        by_library.setdefault(row["library"], []).append((row["bytes"], row["time_us_median"]))
    for library, (color, line, marker, width) in STYLES.items():
        points = sorted(by_library.get(library, []))
        if library == "memcpy" or (library in LIMITS_FROM and crowded):
            points = [point for point in points if point[0] >= LIMITS_FROM[library]]
        if points:
            front = 5 if library.startswith("farandole") else 3
            axes.plot(*zip(*points), line, color=color, marker=marker, markersize=4, linewidth=width, zorder=front,
                      label=NAMES.get(library, library))  # fmt: skip
    axes.set(xscale="log", yscale="log", title=title, xlabel="bytes")
    axes.set_xticks(TICKS, [size_text(tick) for tick in TICKS])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(time_text)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def draw(rows, transport, heading, path):
    rows = [row for row in rows if row.get("transport") == transport]
    ranks = sorted({row["ranks"] for row in rows})
    if not ranks:
        return
    figure, fields = plt.subplots(1, len(ranks), figsize=(5.2 * len(ranks), 5.2), sharey=True, squeeze=False)
    for axes, count in zip(fields[0], ranks):
        cores = max(row["cores"] for row in rows)
        title = f"{count} ranks" if count <= cores else f"{count} ranks on {cores} cores"
        draw_field(axes, [row for row in rows if row["ranks"] == count], title, count > cores)
    fields[0][0].set_ylabel("time of one allreduce, median")
    for axes in fields[0]:
        axes.tick_params(labelleft=True)
    labels = {}
    for axes in fields[0]:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            labels.setdefault(label, handle)
    columns = min(4, 2 * len(ranks))  # four do not fit below one field
    figure.suptitle(heading, fontsize=13)
    figure.legend(labels.values(), labels.keys(), loc="lower center", ncols=columns, frameon=False)
    figure.tight_layout(rect=(0, 0.04 + 0.045 * -(-len(labels) // columns), 1, 1))
    figure.savefig(path, dpi=120)
    print(f"  picture: {path}")


def main():
    source, folder = sys.argv[1:]
    with open(source) as file:
        rows = [json.loads(line) for line in file]
    draw(rows, "shm", "float32 allreduce through shared memory", f"{folder}/shm.png")
    draw(rows, "tcp", "float32 allreduce over TCP on loopback", f"{folder}/tcp.png")


main()
