"""Tests packaging/clash.py, which makes copies of the dependencies that abort the process that calls them.

The library of the tests is linked against Debian's shared libraries, and calls the copies. The library of a wheel
contains its dependencies, and must not: packaging/wheels.sh runs the same program on the wheel.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from launch import ROOT
from limits import allowed


@pytest.mark.parametrize(
    "name, first", [("fmt", "_ZN3fmt"), ("hwloc", "hwloc_"), ("crypto", "OPENSSL_|RAND_bytes|HMAC|EVP_")]
)
def test_a_shared_dependency_is_noticed(name, first, tmp_path):
    command = [sys.executable, Path(ROOT, "packaging/clash.py"), tmp_path, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allowed(120))
    assert done.returncode != 0 and "no clash" not in done.stdout
    called = [line.split("clash: ")[1].split()[0] for line in done.stdout.splitlines() if "clash: " in line]
    assert called and all(symbol.startswith(tuple(first.split("|"))) for symbol in called), done.stdout


def test_without_copies_it_ends_well(tmp_path):
    """The program itself is right: its failure above is due to the copies."""
    (tmp_path / "empty.c").write_text("")
    subprocess.run(["gcc", "-shared", tmp_path / "empty.c", "-o", tmp_path / "empty.so"], check=True)
    rank = [sys.executable, Path(ROOT, "packaging/clash.py"), tmp_path, "--rank", tmp_path / "empty.so"]
    launcher = [Path(sys.executable).parent / "farandole", "run", "--quiet", "-np", "2", "--"]
    done = subprocess.run(
        [*launcher, *rank], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allowed(120)
    )
    assert done.returncode == 0 and done.stdout.count("no clash") == 2, done.stdout
