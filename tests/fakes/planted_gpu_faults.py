"""Plants faults in the code for GPUs, one at a time, and runs the test that must see each of them.

`bash tests/planted_gpu_faults.sh` runs it. The sources are copied to build/planted-gpu, with a build of their own, in
which each source that gets a fault is compiled alone. A row of the table has what the fake of the driver or of NCCL, or
the test, says of the fault. A fault that no test sees fails the run: a fake has lost a check, or a test is missing. A
test that does not end sees its fault, too. The faults are in gpu_faults.py.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import gpu_faults
from gpu_faults import Fault

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "build/planted-gpu"
BUILD = COPY / "build"
PACKAGE = COPY / "build/package"  # farandole for Python, made of links
MODULES = ("fdl_cuda", "fdl_nccl", "fdl_engine", "fdl_runtime", "fdl_capi")
PACKAGES = {"farandole": "bindings/python/farandole", "farandole/torch": "bindings/torch/farandole/torch"}
FAKES = ("fake_cuda", "fake_cuda_old", "fake_nccl", "fake_nccl_loaded")
# A fake waits 45 s for a device before it calls that a hang.
MOST_S = 90
MOST_WORDS = 200
SHARED_MEMORY = Path("/dev/shm")


# ---- The copy and its build ----


def copied_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        is_top = Path(folder) == root
        folders[:] = [
            one
            for one in folders
            if one != "__pycache__" and not (is_top and one.startswith((".", "build", "dist", "tmp")))
        ]
        yield from (Path(folder, one).relative_to(root) for one in files if not is_top or not one.startswith("."))


def copy_sources() -> None:
    """Leaves files that have not changed alone, so that only others are compiled."""
    wanted = set(copied_files(ROOT))
    for one in set(copied_files(COPY)) - wanted:
        (COPY / one).unlink()
    for one in wanted:
        source, target = ROOT / one, COPY / one
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def is_pytest(test: str) -> bool:
    return test.startswith("tests/")


def program_of(test: str) -> str:
    return test.split()[0]


def command(words: list[str], what: str) -> str:
    """Returns the last words of a command that fails, or nothing."""
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    return "" if done.returncode == 0 else f"{what}: {(done.stdout + done.stderr)[-2000:]}"


def configure(faults: list[Fault]) -> str:
    """Configures the build of the test programs, with the sources that get faults outside of unity builds."""
    alone = [f"${{CMAKE_SOURCE_DIR}}/{one}" for one in sorted({fault.source for fault in faults})]
    script = COPY / "alone.cmake"
    script.write_text(
        "cmake_language(DEFER CALL set_source_files_properties\n  "
        + "\n  ".join(one for one in alone if one.endswith(".cpp"))
        + f"\n  TARGET_DIRECTORY {' '.join(MODULES)} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)\n"
    )
    programs = sorted({program_of(fault.test) for fault in faults if not is_pytest(fault.test)})
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_FLAGS_RELEASE": "-O0",
        "CMAKE_CXX_FLAGS": "-DHWY_COMPILE_ONLY_STATIC",  # one instruction set is enough
        "CMAKE_PROJECT_INCLUDE": str(script),
        "FARANDOLE_TESTS": "ON",
        "FARANDOLE_TESTS_ONLY": ";".join(programs),
        "FARANDOLE_PYTHON": "ON",
        "FARANDOLE_MPI": "OFF",
        "FARANDOLE_OFI": "OFF",
        "FARANDOLE_METRICS": "OFF",
        "FARANDOLE_PROGRAM": "OFF",
        "FARANDOLE_CUDA_ARCHITECTURES": "90",  # that of the fake's devices
        "Python_EXECUTABLE": sys.executable,
    }
    words = ["cmake", "-G", "Ninja", "-S", str(COPY), "-B", str(BUILD)]
    return command([*words, *(f"-D{name}={value}" for name, value in settings.items())], "cmake")


def build(tests: list[str]) -> str:
    """Builds what the tests need. Returns the compiler's words if it refuses."""
    targets = {program_of(test) for test in tests if not is_pytest(test)}
    if any(map(is_pytest, tests)):
        targets.add("farandole_python")
    return command(["ninja", f"-j{os.cpu_count()}", "-C", str(BUILD), *sorted(targets), *FAKES], "build")


def make_package() -> None:
    """Makes the Python package of links to the copy and to the build, so that it has every fault at once."""
    shutil.rmtree(PACKAGE, ignore_errors=True)
    for name, source in PACKAGES.items():
        (PACKAGE / name).mkdir(parents=True)
        for one in (COPY / source).iterdir():
            (PACKAGE / name / one.name).symlink_to(one)
    for one in (BUILD / "lib").glob("_native.*"):
        (PACKAGE / "farandole" / one.name).symlink_to(one)
    facts = PACKAGE / "farandole-0.dist-info"  # by which PyTorch finds the backend
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: farandole\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("[torch.backends]\nfarandole = farandole.torch_backend:register\n")


# ---- A test ----


def end_processes(mark: str) -> None:
    """Ends the processes that still have the mark in their environment."""
    for one in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if one.name.isdigit() and mark.encode() in (one / "environ").read_bytes():
                os.kill(int(one.name), signal.SIGKILL)


def shared_files() -> set[Path]:
    """The files of the fake NCCL, whose names have the process that has made them."""
    return set(SHARED_MEMORY.glob("fake-nccl-*"))


def remove_files_of_ended(files: set[Path]) -> None:
    for one in files:
        maker = one.name.split("-")[2]
        if maker.isdigit() and not Path("/proc", maker).exists():
            one.unlink(missing_ok=True)


def run_test(test: str) -> str:
    """Returns what the test says of a fault; nothing if it passes."""
    if is_pytest(test):
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    else:
        program, name = test.split()
        words = [str(BUILD / "bin" / program), f"--gtest_filter={name}"]
    mark, folder, before = f"PLANTED_FAULT={uuid.uuid4().hex}", COPY / "tmp", shared_files()
    folder.mkdir(exist_ok=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "FAKE_"))}
    variables |= dict([mark.split("=")]) | {
        "TMPDIR": str(folder),
        "PYTHONPATH": str(PACKAGE),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(words, env=variables, cwd=COPY, text=True, errors="replace", stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=MOST_S)
    except subprocess.TimeoutExpired:
        return f"does not end within {MOST_S} s"
    finally:
        end_processes(mark)
        process.wait()
        remove_files_of_ended(shared_files() - before)
        shutil.rmtree(folder, ignore_errors=True)
    if not is_pytest(test) and "Running 1 test from" not in output:
        return "this build has no such test"
    return "" if process.returncode == 0 else telling_words(output, process.returncode)


def telling_words(output: str, code: int) -> str:
    """What a fake says as it ends the process, or else the first failed expectation."""
    if by_fake := re.search(r"fake lib\w+: .*", output):
        return short(by_fake[0])
    if expectation := re.search(r"Failure\n(.*?)(?=\n\n|\n\[|\n\S+:\d+: |\Z)", output, re.DOTALL):
        return short(expectation[1])
    raised = re.findall(r"^E +(.*\S)", output, re.MULTILINE)
    assertions = [one for one in raised if one.startswith("assert ")]
    errors = [one for one in raised if re.match(r"\w*(Error|Failed)\b.*: .*[^\d\s]", one) and "Traceback" not in one]
    if raised:
        return short((errors or assertions or raised)[-1])
    return short(f"exit code {code}: {(output.strip().splitlines() or [''])[-1]}")


def short(words: str) -> str:
    words = " ".join(words.replace(f"{COPY}/", "").split()).replace("|", "\\|")
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]} ..."


# ---- The table ----


def see(fault: Fault) -> tuple[bool, str]:
    """Plants the fault and runs its test. Returns whether the test sees it, and what is said."""
    whole = (ROOT / fault.source).read_text()
    if whole.count(fault.words) != 1:
        return False, f"stale: {fault.source} does not have these words once"
    (COPY / fault.source).write_text(whole.replace(fault.words, fault.planted))
    try:
        if words := build([fault.test]):
            return False, words
        said = run_test(fault.test)
    finally:
        shutil.copy(ROOT / fault.source, COPY / fault.source)
    return said != "", said or "NOTHING"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", action="append", metavar="WORDS", help="only faults whose description has these words; repeatable"
    )
    options = parser.parse_args()
    wanted = options.only or [""]
    faults = [fault for fault in gpu_faults.FAULTS if any(words in fault.what for words in wanted)]
    if not faults:
        parser.error("no fault has these words")
    tests = list(dict.fromkeys(fault.test for fault in faults))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # with the test that runs
    COPY.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    copy_sources()
    if words := configure(gpu_faults.FAULTS) or build(tests):
        sys.exit(words)
    make_package()
    print(f"built in {time.monotonic() - begun:.0f} s", flush=True)
    without = {test: run_test(test) for test in tests}
    print("| planted fault | seen by | which says | without the fault |\n|---|---|---|---|", flush=True)
    unseen = 0
    for fault in faults:
        if words := without[fault.test]:
            is_seen, said = False, ""
        else:
            is_seen, said = see(fault)
        unseen += not is_seen
        print(f"| {fault.what} | {fault.test} | {said} | {words or 'passed'} |", flush=True)
    print(f"{len(faults)} faults, {unseen} not seen, {time.monotonic() - begun:.0f} s")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
