"""Results: the samples of one or several launches, reduced to median and minimum, and tables of them as text."""

import statistics


class Cell:
    """One library at one size: all samples of all its launches, or the reason why there are none."""

    def __init__(self):
        self.samples_us = []
        self.launch_medians = []
        self.failure = None

    def add(self, row):
        self.samples_us += row["samples_us"]
        self.launch_medians.append(statistics.median(row["samples_us"]))

    @property
    def median(self):
        """The median of the launches' medians, so that every launch has the same weight."""
        return statistics.median(self.launch_medians) if self.launch_medians else None

    @property
    def least(self):
        return min(self.samples_us) if self.samples_us else None

    def percentile(self, part):
        ordered = sorted(self.samples_us)
        return ordered[int(part * len(ordered))] if ordered else None

    def text(self):
        if not self.samples_us:
            return "-" if self.failure is None else "failed"
        return f"{short(self.median)} ({short(self.least)})"


def short(us):
    """Microseconds with three significant digits."""
    if us is None:
        return "-"
    return f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def size(bytes_):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if bytes_ >= unit:
            return f"{bytes_ // unit} {name}"
    return f"{bytes_} B"


def times(ratio):
    return "-" if ratio is None else f"{ratio:.2f}x"


def ratio(above, below):
    return above / below if above and below else None


def print_table(title, headings, rows, notes=()):
    """Columns as wide as they need to be: numbers to the right, a last column of text to the left."""
    print(f"\n{title}")
    for note in notes:
        print(f"  {note}")
    table = [headings, *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    for number, row in enumerate(table):
        last = row[-1].ljust(widths[-1]) if headings[-1] == "what" else row[-1].rjust(widths[-1])
        print("  " + "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths[:-1])), last]).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    print(flush=True)


class Target:
    """One target of the project: the points that were checked, and by how much each missed one was missed."""

    def __init__(self, name, promise):
        self.name = name
        self.promise = promise
        self.checked = 0
        self.missed = []
        self.unknown = []

    def check(self, what, value, target, at_most=False):
        """`value` must be at least (or at most) `target`; None counts as not measured. Returns the table's entry."""
        self.checked += 1
        if value is None:
            self.unknown.append(what)
            return "?"
        if (value <= target) if at_most else (value >= target):
            return "yes"
        self.missed.append(f"{what}: {value:.2f}, target {'<=' if at_most else '>='} {target:g}")
        return "NO"

    @property
    def word(self):
        if self.missed:
            return "NO"
        return "yes" if self.checked and not self.unknown else "not measured" if not self.checked else "incomplete"
