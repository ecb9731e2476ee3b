"""Loads incompatible copies of farandole's dependencies before it, and runs an allreduce on two ranks.

The copies define every symbol of Debian's libfmt, libspdlog, libhwloc and libcrypto. A function of theirs prints its
name and aborts. They are loaded with RTLD_GLOBAL: a library that is linked against shared libraries of these names
would call them.

    python packaging/clash.py FOLDER [NAME...]      compiles the copies in FOLDER; by default all of them
"""

import argparse
import ctypes
import os
import pathlib
import subprocess
import sys

NAMES = ("fmt", "spdlog", "hwloc", "crypto")
HEAD = """#include <stdio.h>
#include <stdlib.h>
static void clash(const char* name) {
  fprintf(stderr, "clash: %s was called\\n", name);
  abort();
}
"""


def symbols(library):
    """Yields a pair (name, whether it is a function) for each symbol that a shared library defines."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        _, kind, name = line.split()
        if kind != "A":  # the names of versions
            yield name.partition("@")[0], kind in "TWiu"


def compile_copy(name, folder):
    """Writes and compiles the copy lib<name>.so; returns its path. Needs gcc and Debian's lib<name>-dev."""
    found = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True).stdout
    if not os.path.isabs(found):
        sys.exit(f"clash: no lib{name}.so here; install what tests/packages.txt lists")
    text = HEAD
    for symbol, is_function in sorted(dict(symbols(found.strip())).items()):
        text += f'void {symbol}(void) {{ clash("{symbol}"); }}\n' if is_function else f"char {symbol}[4096];\n"
    source, target = folder / f"{name}.c", folder / f"libclash_{name}.so"
    source.write_text(text)
    options = ["-w", "-fno-builtin", "-shared", "-fPIC", "-O0"]
    subprocess.run(["gcc", *options, source, "-o", target], check=True)
    return target


def run_rank(copies):
    """Loads the copies, then farandole, and sums on two ranks. The job key makes both compute HMACs."""
    import hashlib  # noqa: F401  Python's own modules use libcrypto: they are loaded, and bound, before the copies
    import ssl  # noqa: F401

    import numpy

    for copy in copies:
        ctypes.CDLL(copy, ctypes.RTLD_GLOBAL)
    import farandole

    farandole.init()
    summed = farandole.allreduce(numpy.arange(1000, dtype=numpy.float32), op=farandole.SUM, name="x")
    assert (summed == numpy.arange(1000, dtype=numpy.float32) * 2).all(), summed
    farandole.shutdown()
    print("no clash", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("name", nargs="*", default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--rank", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(arguments.rank)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    copies = [compile_copy(name, arguments.folder) for name in arguments.name]
    launcher = [os.path.join(os.path.dirname(sys.executable), "farandole"), "run", "--quiet", "-np", "2", "--"]
    environment = {
        **os.environ,
        "FARANDOLE_LOG_LEVEL": "debug",
        "FARANDOLE_JOB_KEY": "0123456789abcdef0123456789abcdef",
    }
    sys.exit(subprocess.run([*launcher, sys.executable, __file__, ".", "--rank", *copies], env=environment).returncode)


if __name__ == "__main__":
    main()
