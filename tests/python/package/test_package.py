"""The installed tree: another project finds the library by find_package, builds, links and runs."""

import os
import subprocess
import sys

from launch import ROOT

CMAKE = """
cmake_minimum_required(VERSION 3.20)
project(elsewhere LANGUAGES C CXX)
find_package(farandole 0.1 REQUIRED)
add_executable(in_c main.c)
target_link_libraries(in_c PRIVATE farandole::farandole)
add_executable(in_cpp main.cpp)
target_link_libraries(in_cpp PRIVATE farandole::farandole)
target_compile_features(in_cpp PRIVATE cxx_std_17)
"""
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_against(prefix, folder):
    folder.mkdir()
    for name, text in {"CMakeLists.txt": CMAKE, "main.c": MAIN_C, "main.cpp": MAIN_CPP}.items():
        (folder / name).write_text(text)
    run("cmake", "-S", str(folder), "-B", str(folder / "build"), f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", str(folder / "build"))
    return folder / "build"


def test_another_project_uses_the_installed_tree(tmp_path):
    prefix = tmp_path / "prefix"
    run("cmake", "--install", os.path.join(ROOT, "build"), "--prefix", str(prefix), "--component", "system")
    built = build_against(prefix, tmp_path / "elsewhere")
    for program in ["in_c", "in_cpp"]:
        printed = run(str(prefix / "bin" / "farandole"), "run", "-np", "2", str(built / program))
        assert sorted(printed.split()) == ["2", "2", "[0]", "[1]"], printed


def test_another_project_uses_the_wheel(tmp_path):
    where = run(sys.executable, "-c", "import farandole, os; print(os.path.dirname(farandole.__file__))").strip()
    built = build_against(where, tmp_path / "elsewhere")
    assert run(str(built / "in_c")) == "1\n"


def test_nothing_but_the_c_api_is_exported():
    import farandole

    folder = os.path.dirname(farandole.__file__)
    library = next(
        os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith("libfarandole.so")
    )
    names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    foreign = [name for name in names if not name.startswith("fdl_")]
    assert "fdl_allreduce" in names
    assert not foreign, foreign[:10]
