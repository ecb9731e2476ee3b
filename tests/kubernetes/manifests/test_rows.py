"""Tests the table of examples/kubernetes/README.md: every row exists, and so do the files and tests that it names."""

import re
from collections import Counter

import pytest
from manifest_checks import KUBERNETES, ROOT
from planted_faults import FAULTS

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
    words = [proof_of(test) for test in re.findall(r"`([^`]+)`", tests)]
    assert proved.partition(":")[0] == min(words, key=WORDS.index, default="by hand"), words
    assert not proved.startswith("by hand") or "`" in proved, "name the command"


def proof_of(test):
    return next(word for place, word in PROOFS.items() if test.startswith(place))


def test_a_fault_is_planted_for_each_row_that_says_run_or_simulated():
    """python tests/kubernetes/planted_faults.py runs them."""
    claimed = {row for row, (*_, proved) in TABLE.items() if proved.partition(":")[0] in ("run", "simulated")}
    assert set(FAULTS) == claimed


@pytest.mark.parametrize("row", FAULTS)
def test_a_planted_fault_changes_its_file_and_has_a_test_of_its_row(row):
    fault = FAULTS[row]
    text = (ROOT / fault.file).read_text()
    assert fault.old in text and fault.old != fault.new
    file, _, function = fault.test.partition("::")
    name, _, case = function.partition("[")
    assert name in TESTS[file]
    assert row.lower() in f"{name}_{case}".replace("-", "_").split("_"), f"{function} does not carry {row} in its name"
    assert proof_of(fault.test) in ("run", "simulated"), f"{fault.test} runs nothing"


def test_the_options_that_rows_name_are_the_generators():
    from farandole.integrations.kubernetes.options import parser

    text = parser().format_help()
    for option in set(re.findall(r"`farandole kubernetes gen (--[\w-]+)`", (KUBERNETES / "README.md").read_text())):
        assert option in text


def test_the_rows_add_up():
    counts = Counter(proved.partition(":")[0] for *_, proved in TABLE.values())
    print(f"rows: {', '.join(f'{counts[word]} {word}' for word in WORDS)}, of {len(TABLE)}")
    assert set(counts) <= set(WORDS) and sum(counts.values()) == 71
    text = " ".join((KUBERNETES / "README.md").read_text().split())
    sentence = f"Of 71 rows {counts['run']} are run, {counts['simulated']} simulated, {counts['validated']} validated"
    assert sentence in text and counts["by hand"] == 0
