"""Results: the samples of one or several launches, told as median and minimum; and tables of them as text."""

import statistics


class Cell:
    """One library at one size: all samples of all its launches, or why there are none."""

    def __init__(self):
        self.samples_us = []
        self.launch_medians = []
        self.failure = None

    def add(self, row):
        self.samples_us += row["samples_us"]
        self.launch_medians.append(statistics.median(row["samples_us"]))

    @property
    def median(self):
        """Of launches' medians: a launch that went well or badly weighs as much as any other."""
        return statistics.median(self.launch_medians) if self.launch_medians else None

    @property
    def least(self):
        return min(self.samples_us) if self.samples_us else None

    def text(self):
        if not self.samples_us:
            return "-" if self.failure is None else "failed"
        return f"{short(self.median)} ({short(self.least)})"


def short(us):
    """Microseconds with three digits that mean something."""
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
    """Columns as wide as they need to be: numbers to the right, a last column of words to the left."""
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


class Verdict:
    """Whether a target holds: a list of what was asked, where each may say by how much it was missed."""

    def __init__(self, target, promise):
        self.target = target
        self.promise = promise
        self.asked = 0
        self.missed = []
        self.unknown = []

    def ask(self, what, value, wanted, at_most=False):
        """`value` must be at least (or at most) `wanted`; a missing value is said to be missing. Gives the word for a
        table."""
        self.asked += 1
        if value is None:
            self.unknown.append(what)
            return "?"
        if (value <= wanted) if at_most else (value >= wanted):
            return "yes"
        self.missed.append(f"{what}: {value:.2f}, wanted {'<=' if at_most else '>='} {wanted:g}")
        return "NO"

    @property
    def word(self):
        if self.missed:
            return "NO"
        return "yes" if self.asked and not self.unknown else "not measured" if not self.asked else "incomplete"
