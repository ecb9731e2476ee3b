"""packaging/abi.sh reports differences of the ABI that break programs. A small library stands for farandole's."""

import subprocess
from pathlib import Path

import farandole
import pytest
from launch import ROOT
from limits import allowed

HEADER = """
typedef struct { int count; const char* name; } shape;
int fdl_first(const shape* one);
int fdl_second(int a);
"""
SOURCE = """
#include "small.h"
int fdl_first(const shape* one) { return one->count; }
int fdl_second(int a) { return a; }
"""


def library(folder, header=HEADER, source=SOURCE):
    folder.mkdir()
    (folder / "small.h").write_text(header)
    (folder / "small.c").write_text(source)
    command = [
        "gcc",
        "-g",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libsmall.so.0",
        folder / "small.c",
        "-o",
        folder / "small.so",
    ]
    subprocess.run(command, check=True)
    return ["--library", folder / "small.so", folder]


def abi(*arguments):
    command = ["bash", Path(ROOT, "packaging/abi.sh"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allowed(900))
    return done.returncode, done.stdout


@pytest.fixture
def stored(tmp_path):
    code, printed = abi(*library(tmp_path / "first"), "--write", tmp_path / "first.abi")
    assert code == 0 and "2 symbols" in printed, printed
    return tmp_path / "first.abi"


def test_the_same_library_has_no_difference(stored, tmp_path):
    code, printed = abi(*library(tmp_path / "second"), "--against", stored)
    assert code == 0, printed


def test_an_added_function_is_no_difference(stored, tmp_path):
    added = library(tmp_path / "second", HEADER + "int fdl_third(void);", SOURCE + "int fdl_third(void) { return 3; }")
    code, printed = abi(*added, "--against", stored)
    assert code == 0, printed


@pytest.mark.parametrize(
    "header, source, text",
    [
        (HEADER, SOURCE.replace("fdl_second", "fdl_other"), "fdl_second"),
        (HEADER.replace("(int a)", "(long a)"), SOURCE.replace("(int a)", "(long a)"), "'int' to 'long int'"),
        (HEADER.replace("int count;", "int added; int count;"), SOURCE, "added"),
    ],
    ids=["removed function", "other parameter", "other struct"],
)
def test_what_breaks_programs_is_reported(header, source, text, stored, tmp_path):
    source = source.replace('#include "small.h"', '#include "small.h"\nint fdl_other(int a);')
    code, printed = abi(*library(tmp_path / "second", header, source), "--against", stored)
    assert code == 1 and text in printed and "raise the soname" in printed, printed


def test_the_symbols_of_the_present_library_are_described(tmp_path):
    wheel = Path(farandole.__file__).parent
    code, printed = abi("--library", wheel / "libfarandole.so.0", wheel / "include", "--write", tmp_path / "now.abi")
    assert code == 0, printed
    described = (tmp_path / "now.abi").read_text()
    assert "'libfarandole.so.0'" in described and "elf-symbol name='fdl_allreduce'" in described


def test_arguments_are_checked(tmp_path):
    code, printed = abi("--against", tmp_path / "missing.abi")
    assert code == 2 and "cannot read" in printed
    code, printed = abi("--what")
    assert code == 2 and "bash packaging/abi.sh --write FILE" in printed


def test_before_the_first_release_there_is_nothing_to_compare_with():
    """A release stores its description; this test then compares the library with it, which compiles it once more."""
    code, printed = abi()
    assert code == 0, printed
