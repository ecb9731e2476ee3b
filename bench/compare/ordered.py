"""P1 to P4: allreduce of one size after the other, through shared memory and over loopback TCP, beside the peers."""

from launch import CORES, launch
from results import Cell, Target, print_table, ratio, size, times

FULL_SIZES = [4, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
QUICK_SIZES = [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
# The names in the tables.
OURS, MAPPED = "farandole", "farandole, fdl_alloc"
CMA, NO_CMA, MPICH = "Open MPI, CMA", "Open MPI, no CMA", "MPICH"
OPENMPI_TCP, GLOO = "Open MPI", "Gloo"
MEMCPY, BARE = "memcpy", "bare sockets"
TIME_SLICE_MS = 1  # kernels give a runnable process at least this
MPIS = (CMA, NO_CMA, MPICH)
NO_SINGLE_COPY = {"btl_vader_single_copy_mechanism": "none"}
OVER_TCP = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "lo"}


class Ordered:
    """All measurements of one transport and number of ranks: cells by library and size."""

    def __init__(self, transport, ranks, commands, sizes):
        self.transport = transport
        self.ranks = ranks
        self.commands = commands
        self.sizes = sizes
        self.cells = {name: {bytes_: Cell() for bytes_ in sizes} for name in commands}
        self.failures = []

    def measure(self, rounds, timeout_s):
        """Every library once a round, one after the other, so that a disturbance of the machine affects all of them."""
        self.seconds = {name: 0.0 for name in self.commands}
        for _ in range(rounds):
            for name, (command, variables) in self.commands.items():
                if any(failed == name for failed, _ in self.failures):
                    continue  # it would fail again
                done = launch(command, timeout_s, variables)
                self.seconds[name] += done.seconds
                for row in done.rows:
                    self.cells[name][row["bytes"]].add(row)
                if done.failure:
                    self.failures.append((name, done.failure))
                    for cell in self.cells[name].values():
                        cell.failure = done.failure

    def median(self, name, bytes_):
        return self.cells[name][bytes_].median if name in self.cells else None

    def best(self, names, bytes_):
        known = [self.median(name, bytes_) for name in names if self.median(name, bytes_)]
        return min(known) if known else None

    def notes(self):
        pinned = "each rank on its own core (Gloo: free)" if self.ranks <= CORES else "ranks not bound to cores"
        lines = [f"float32 sum, microseconds: median (minimum); {pinned}; cold, modified buffers from 64 KiB"]
        return lines + [f"{name} failed: {why}" for name, why in self.failures]

    def print(self, title, columns, target_columns):
        """`columns` lists libraries; `target_columns` maps a heading to a function of the size."""
        rows = []
        for bytes_ in self.sizes:
            cells = [self.cells[name][bytes_].text() for name in columns]
            rows.append([size(bytes_), *cells, *[column(bytes_) for column in target_columns.values()]])
        print_table(title, ["bytes", *columns, *target_columns], rows, self.notes())

    def json_rows(self):
        for name, by_size in self.cells.items():
            for bytes_, cell in by_size.items():
                if cell.median is None:
                    continue
                rate = bytes_ / cell.median / 1e3
                yield {
                    "collective": "allreduce", "library": name, "transport": self.transport, "algorithm": "auto",
                    "ranks": self.ranks, "bytes": bytes_, "dtype": "float32", "time_us_median": round(cell.median, 3),
                    "time_us_min": round(cell.least, 3), "algbw_GBps": round(rate, 4),
                    "busbw_GBps": round(rate * 2 * (self.ranks - 1) / self.ranks, 4),
                }  # fmt: skip


def shared_memory(programs, ranks, sizes, seconds):
    how = ["--sizes", ",".join(map(str, sizes)), "--seconds", seconds]
    ours = {"FARANDOLE_TRANSPORT": "shm"}
    commands = {
        OURS: (programs.farandole(ranks, *how, "--transport", "shm"), ours),
        CMA: (programs.openmpi(ranks, {}, *how), None),
        MAPPED: (programs.farandole(ranks, *how, "--transport", "shm", "--mode", "own-memory"), ours),
        NO_CMA: (programs.openmpi(ranks, NO_SINGLE_COPY, *how), None),
        MEMCPY: (programs.limits(ranks, *how, "--mode", "copy"), None),
        MPICH: (programs.mpich(ranks, *how), None),
    }
    return Ordered("shm", ranks, commands, sizes)


def loopback_tcp(programs, ranks, sizes, seconds):
    how = ["--sizes", ",".join(map(str, sizes)), "--seconds", seconds]
    commands = {
        OURS: (programs.farandole(ranks, *how, "--transport", "tcp"), None),
        OPENMPI_TCP: (programs.openmpi(ranks, OVER_TCP, *how), None),
        BARE: (programs.limits(ranks, *how, "--mode", "exchange"), None),
        GLOO: (programs.torch("gloo", ranks, *how), {"GLOO_SOCKET_IFNAME": "lo"}),
    }
    return Ordered("tcp", ranks, commands, sizes)


def p1_target(bytes_):
    """How many times as fast as the best MPI. Up to 16 KiB no copy of the vector is the limit, so twice there."""
    return 3 if bytes_ >= 16 << 20 else 2 if bytes_ == 16 << 10 else 1


def of_memcpy(measured, name, bytes_):
    return ratio(measured.median(MEMCPY, bytes_), measured.median(name, bytes_))


def shown_of_memcpy(measured, name, bytes_):
    return f"{of_memcpy(measured, name, bytes_) or 0:.2f}" if bytes_ >= 4096 else "-"


def check_p1(measured):
    target = Target(
        "P1", "shared memory, 2 ranks: the best MPI, at 16 KiB twice, from 16 MiB 3 times; from 64 KiB 0.95 of memcpy"
    )

    def faster(bytes_):
        return ratio(measured.best(MPIS, bytes_), measured.median(OURS, bytes_))

    def holds(bytes_):
        words = [target.check(f"{size(bytes_)} over the best MPI", faster(bytes_), p1_target(bytes_))]
        if bytes_ >= 64 << 10:
            words.append(target.check(f"{size(bytes_)} of memcpy", of_memcpy(measured, OURS, bytes_), 0.95))
        return "NO" if "NO" in words else words[0]

    measured.print(
        "P1  allreduce through shared memory, 2 ranks, against the best MPI of each size",
        [OURS, *MPIS, MEMCPY],
        {
            "best MPI / ours": lambda b: times(faster(b)),
            "target": lambda b: f">= {p1_target(b)}x",
            "of memcpy": lambda b: shown_of_memcpy(measured, OURS, b),
            "holds": holds,
        },
    )
    return target


def check_p2(measured):
    target = Target("P2", "with memory from fdl_alloc, from 64 KiB: 3 times the best MPI, and faster than memcpy")

    def faster(bytes_):
        return ratio(measured.best(MPIS, bytes_), measured.median(MAPPED, bytes_))

    def holds(bytes_):
        if bytes_ < 64 << 10:
            return ""
        words = [
            target.check(f"{size(bytes_)} over the best MPI", faster(bytes_), 3),
            target.check(f"{size(bytes_)} of memcpy", of_memcpy(measured, MAPPED, bytes_), 1),
        ]
        return "NO" if "NO" in words else words[0]

    measured.print(
        "P2  the same with memory from the library's allocator",
        [MAPPED, OURS, MEMCPY],
        {
            "ordinary / own": lambda b: times(ratio(measured.median(OURS, b), measured.median(MAPPED, b))),
            "best MPI / own": lambda b: times(faster(b)),
            "of memcpy": lambda b: shown_of_memcpy(measured, MAPPED, b),
            "target": lambda b: ">= 3x, >= 1" if b >= 64 << 10 else "",
            "holds": holds,
        },
    )
    return target


def check_p3(target, measured):
    """A rank that spins instead of yielding its core burns a time slice of milliseconds, which even a small call
    shows."""
    where = f"{measured.ranks} ranks, "

    def faster(bytes_):
        return ratio(measured.best((CMA, NO_CMA), bytes_), measured.median(OURS, bytes_))

    def holds(bytes_):
        words = [target.check(f"{where}{size(bytes_)} over Open MPI", faster(bytes_), 1)]
        if bytes_ <= 64 << 10:
            took = measured.median(OURS, bytes_)
            words.append(target.check(f"{where}{size(bytes_)}, ms", took and took / 1e3, TIME_SLICE_MS, at_most=True))
        return "NO" if "NO" in words else words[0]

    measured.print(
        f"P3  allreduce through shared memory, {measured.ranks} ranks on {CORES} cores, against Open MPI",
        [OURS, MAPPED, *MPIS, MEMCPY],
        {
            "Open MPI / ours": lambda b: times(faster(b)),
            "holds": holds,
        },
    )


def check_p4(target, measured):
    where = f"{measured.ranks} ranks, "

    def faster(bytes_):
        return ratio(measured.best((OPENMPI_TCP, GLOO), bytes_), measured.median(OURS, bytes_))

    def of_bare(bytes_):
        return ratio(measured.median(BARE, bytes_), measured.median(OURS, bytes_))

    def holds(bytes_):
        words = [target.check(f"{where}{size(bytes_)} over the best peer", faster(bytes_), 1)]
        if bytes_ >= 1 << 20:
            words.append(target.check(f"{where}{size(bytes_)} of bare sockets", of_bare(bytes_), 0.8))
        return "NO" if "NO" in words else words[0]

    measured.print(
        f"P4  allreduce over loopback TCP, {measured.ranks} ranks, against Open MPI over tcp and Gloo",
        [OURS, OPENMPI_TCP, GLOO, BARE],
        {
            "best peer / ours": lambda b: times(faster(b)),
            "of bare sockets": lambda b: f"{of_bare(b) or 0:.2f}",
            "target": lambda b: "> 1x, >= 0.8" if b >= 1 << 20 else "> 1x",
            "holds": holds,
        },
    )
