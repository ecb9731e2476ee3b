"""The scripts of bench/gpu on a machine without a GPU: a training step's gradients, a folder to carry, and NCCL made
small."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile

import farandole
import pytest
from launch import ROOT
from limits import allowed

FOLDER = os.path.join(ROOT, "bench", "gpu")


def run(script, *words, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return subprocess.run([sys.executable, os.path.join(FOLDER, script), *words], env={**environment, **variables},
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=allowed(240))  # fmt: skip


# ---- ddp_bench


def test_gradients_are_right_for_each_backend():
    done = run("ddp_bench.py", "--device", "cpu", "--check")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"2 ranks on cpu: all gradients are right\n"


def test_without_a_gpu_the_benchmark_exits_with_three():
    done = run("ddp_bench.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert b"finds no GPU here" in done.stderr


def test_overlap_is_measured_against_a_step_that_computes(tmp_path):
    rows = tmp_path / "rows.json"
    done = run(
        "ddp_bench.py", "--device", "cpu", "--overlap", "--shared-gradients", "--steps", "2", "--json", str(rows)
    )
    assert done.returncode == 0, done.stderr.decode()
    assert [row["what"] for row in map(json.loads, rows.read_text().splitlines())] == [
        "DDP, gloo", "DDP, farandole", "DistributedOptimizer", "the same, shared gradients"]  # fmt: skip


# ---- device_check


@pytest.mark.parametrize("job", ["killed before a first call", "stopped"])
def test_a_rank_is_lost_or_stopped_and_the_other_one_goes_on(job):
    done = run("device_check.py", "--device", "cpu", "--only", job)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert f"passed: {job}" in done.stdout.decode()


# ---- pack.sh and dry_run.sh

PROGRAMS = os.path.join(ROOT, "build", "bin")


@pytest.fixture
def packed(tmp_path):
    """A folder to carry with the programs of this build and the installed package, and what pack.sh prints."""
    for name in ("gpu_bench", "nccl_bench", "calls_bench", "one_shot_bench"):
        assert os.path.exists(os.path.join(PROGRAMS, name)), "bash tests/run.sh builds the benchmarks"
    package = os.path.dirname(farandole.__file__)
    wheel = tmp_path / "farandole-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, _, names in os.walk(package):
            for name in names:
                path = os.path.join(folder, name)
                archive.write(path, os.path.relpath(path, os.path.dirname(package)))
    folder = tmp_path / "packed"
    done = subprocess.run(["bash", os.path.join(FOLDER, "pack.sh"), "--programs", PROGRAMS, "--wheel", str(wheel),
                           "--folder", str(folder)], capture_output=True, text=True, timeout=allowed(120))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def dry_run(folder, *words):
    return subprocess.run(["bash", os.path.join(FOLDER, "dry_run.sh"), "--folder", str(folder), *words],
                          env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True,
                          timeout=allowed(600))  # fmt: skip


def test_a_packed_folder_needs_nothing_else(packed):
    folder, printed = packed
    size = int(re.search(r"(\d+) MiB to carry", printed).group(1))
    print(f"{size} MiB without NCCL")
    assert size < 40
    done = dry_run(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all sums are right") == 13
    assert done.stdout.count("checks on each against the CPU's kernels, 0 wrong") == 4
    assert re.search(r"^farandole \S+ /\S+/package/farandole/__init__.py$", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.endswith("2 ranks on cpu: all gradients are right\n")


def test_a_version_of_python_that_is_not_there_is_named(packed):
    folder, _ = packed
    done = dry_run(folder, "--python", "3.999")
    assert done.returncode == 3
    assert "there is no python3.999: install it" in done.stderr


def test_what_a_machine_lacks_is_named_and_left_out(packed):
    folder, _ = packed
    shutil.rmtree(folder / "lib")
    for program in ("nccl_bench", "calls_bench"):
        (folder / program).unlink()
    done = subprocess.run(["bash", str(folder / "run.sh"), "B", "C", "--check"], capture_output=True, text=True,
                          env={"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere/python3"}, timeout=allowed(60))  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    for tool in ("/nowhere/python3", "compute-sanitizer", "nsys"):
        assert f"missing: {tool}" in done.stdout


# ---- slim_nccl

PTX, ELF = 1, 2


def fat_binary(*contents):
    """Of (kind, architecture, bytes)."""
    entries = b""
    for kind, architecture, code in contents:
        header = struct.pack("<HHIQ", kind, 0x101, 64, len(code))
        entries += header.ljust(28, b"\0") + struct.pack("<I", architecture) + bytes(32) + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def elf(**contents):
    """A file with these sections, and their offsets by name."""
    names, places, body = b"\0", {}, bytes(64)
    for name, data in contents.items():
        places[name] = len(body)
        body += data
    rows = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, data in contents.items():
        rows.append(struct.pack("<IIQQQQIIQQ", len(names), 1, 0, 0, places[name], len(data), 0, 0, 8, 0))
        names += name.replace("dot_", ".").encode() + b"\0"
    rows.append(struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, len(body), len(names), 0, 0, 1, 0))
    body += names
    image = bytearray(body + b"".join(rows))
    struct.pack_into("<Q", image, 40, len(body))
    struct.pack_into("<HH", image, 60, len(rows), len(rows) - 1)
    return bytes(image)


@pytest.fixture
def library(tmp_path):
    def write(keep, drop):
        whole = elf(dot_text=b"program", dot_debug_info=b"%b" % (drop * 8),
                    __nv_relfatbin=fat_binary((ELF, 90, drop * 8)),
                    dot_nv_fatbin=fat_binary((ELF, 80, drop * 16), (ELF, 90, keep * 16), (PTX, 90, drop * 8)) + bytes(8)
                    + fat_binary((ELF, 90, keep * 8), (ELF, 100, drop * 8)))  # fmt: skip
        path = tmp_path / "libnccl.so.2"
        path.write_bytes(whole)
        return path, whole

    return write


def test_nccl_keeps_the_code_of_one_architecture(library):
    path, whole = library(b"K", b"D")
    done = run("slim_nccl.py", str(path), "90")
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole.replace(b"DDDDDDDD", bytes(8))
    assert done.stdout.count(b"K") == 24


def test_an_architecture_that_nccl_lacks_is_an_error(library):
    path, _ = library(b"K", b"D")
    done = run("slim_nccl.py", str(path), "75")
    assert done.returncode != 0 and not done.stdout
    assert b"has no machine code for sm_75" in done.stderr
