"""Tests the table of examples/kubernetes/README.md: every row exists, and so do the files and tests that it names."""

import re
from collections import Counter

import pytest
from manifest_checks import KUBERNETES, ROOT

ROWS = [
    f"{letter}{n}"
    for letter, count in (("P", 7), ("H", 18), ("E", 15), ("K", 20), ("C", 11))
    for n in range(1, count + 1)
]
TABLE = {
    cells[0]: cells[1:]
    for line in (KUBERNETES / "README.md").read_text().splitlines()
    if re.match(r"\| [PHEKC]\d+ \|", line)
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
# What tests of a place prove, and the words from the strongest on. A row has the strongest word of its tests.
WORDS = ["run", "simulated", "validated", "by hand"]
PROOFS = {
    "programs/": "run",  # the program itself, in processes of this machine
    "pods/": "simulated",
    "manifests/": "validated",
    "iac/": "validated",
    "operators/test_prometheus.py": "run",
    "operators/test_ray.py": "run",
    "operators/test_logs_and_status.py": "run",  # kubectl, with a stub of the API server
    "operators/test_pipelines.py": "run",
    "operators/": "simulated",  # the operators' rules in pods of this machine
}
TESTS = {
    path.relative_to(ROOT / "tests" / "kubernetes").as_posix(): set(
        re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    )
    for path in (ROOT / "tests" / "kubernetes").rglob("test_*.py")
}


def test_every_row_is_in_the_table_once_and_in_order():
    lines = re.findall(r"^\| ([PHEKC]\d+) \|", (KUBERNETES / "README.md").read_text(), re.M)
    assert lines == ROWS


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_files_and_tests_that_exist(row):
    what, places, tests, proved = TABLE[row]
    names = re.findall(r"`([^`]+)`", places)
    assert what and names
    for name in names:
        if "/" in name or re.search(r"\.(py|yaml|sh)$", name):
            assert (ROOT / "examples" / name).is_file(), name
        else:
            assert re.match(r"farandole[ .]|FARANDOLE_", name), name
    for test in re.findall(r"`([^`]+)`", tests):
        file, _, function = test.partition("::")
        assert function in TESTS.get(file, ()), test
        assert row.lower() in function.split("_"), f"{function} does not carry {row} in its name"
    words = [
        next(word for place, word in PROOFS.items() if test.startswith(place))
        for test in re.findall(r"`([^`]+)`", tests)
    ]
    assert proved.partition(":")[0] == min(words, key=WORDS.index, default="by hand"), words
    assert not proved.startswith("by hand") or "`" in proved, "name the command"


def test_the_options_that_rows_name_are_the_generators():
    from farandole.integrations.kubernetes.options import parser

    text = parser().format_help()
    for option in set(re.findall(r"`farandole kubernetes gen (--[\w-]+)`", (KUBERNETES / "README.md").read_text())):
        assert option in text


def test_the_rows_add_up():
    counts = Counter(proved.partition(":")[0] for *_, proved in TABLE.values())
    print(f"rows: {', '.join(f'{counts[word]} {word}' for word in WORDS)}, of {len(TABLE)}")
    assert set(counts) <= set(WORDS) and sum(counts.values()) == 71
