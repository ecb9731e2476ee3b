"""A small program of another project, in C and in C++: written, built by any means, and run on two ranks."""

import subprocess

from launch import FARANDOLE
from limits import allowed

MAIN_C = """
#include <farandole/farandole.h>
#include <stdio.h>
int main(void) {
  fdl_world* world;
  fdl_comm* comm;
  float value = 1;
  if (fdl_world_create(NULL, &world) || fdl_comm_create(fdl_group_all(world), &comm) ||
      fdl_allreduce(comm, &value, &value, 1, FDL_FLOAT32, FDL_SUM)) {
    fprintf(stderr, "%s\\n", fdl_last_error()->text);
    return 1;
  }
  printf("%g\\n", value);
  fdl_comm_destroy(comm);
  fdl_world_destroy(world);
  return 0;
}
"""
MAIN_CPP = """
#include <farandole/farandole.hpp>
#include <iostream>
int main() {
  fdl::World world;
  fdl::Comm comm(world.all());
  float value = 1;
  comm.allreduce(&value, 1);
  std::cout << value << "\\n";
}
"""


def run(*command, **options):
    """Runs a command that must succeed; returns what it prints."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, timeout=allowed(600), **{"text": True, **options}
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expect_two_ranks(program, launcher=FARANDOLE):
    """Runs the program on two ranks: each prints the sum of two ones."""
    printed = run(launcher, "run", "-np", "2", program)
    assert sorted(printed.split()) == ["2", "2", "[0]", "[1]"], printed


def write(folder, **files):
    """Writes main.c, main.cpp and the given files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"main.c": MAIN_C, "main.cpp": MAIN_CPP, **files}.items():
        (folder / name).write_text(text)
