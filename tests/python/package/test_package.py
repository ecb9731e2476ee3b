"""Other projects use the library: find_package, pkg-config, -lfarandole, FetchContent."""

import os
import shutil
from pathlib import Path

import farandole
import pytest
from launch import ROOT
from other_projects import expect_two_ranks, run, write

WHEEL = Path(farandole.__file__).parent

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
FETCH = """
cmake_minimum_required(VERSION 3.25)
project(around LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(farandole SOURCE_DIR ${FARANDOLE_SOURCES})
FetchContent_MakeAvailable(farandole)
add_executable(in_cpp main.cpp)
target_link_libraries(in_cpp PRIVATE farandole::farandole)
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """What `cmake --install` makes, moved to another folder after that."""
    folder = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", os.path.join(ROOT, "build"), "--prefix", folder / "first")
    return (folder / "first").rename(folder / "moved")


def pkgconfig(prefix):
    return next(prefix.glob("lib*/**/farandole.pc")).parent


@pytest.mark.parametrize("place", ["prefix", "wheel"])
def test_another_project_uses_find_package(place, prefix, tmp_path):
    write(tmp_path, **{"CMakeLists.txt": CMAKE})
    found = f"-DCMAKE_PREFIX_PATH={prefix}" if place == "prefix" else f"-Dfarandole_DIR={farandole.get_cmake_dir()}"
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", found)
    run("cmake", "--build", tmp_path / "build")
    for program in ["in_c", "in_cpp"]:
        expect_two_ranks(tmp_path / "build" / program)


@pytest.mark.parametrize("place", ["prefix", "wheel"])
def test_another_project_uses_pkg_config(place, prefix, tmp_path):
    folder = pkgconfig(prefix) if place == "prefix" else farandole.get_pkgconfig_dir()
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    assert run("pkg-config", "--modversion", "farandole", env=environment).strip() == farandole.__version__
    libraries = run("pkg-config", "--variable=libdir", "farandole", env=environment).strip()
    flags = run("pkg-config", "--cflags", "--libs", "farandole", env=environment).split()
    write(tmp_path)
    for compiler, source in (("gcc", "main.c"), ("g++", "main.cpp")):
        run(compiler, tmp_path / source, *flags, f"-Wl,-rpath,{libraries}", "-o", tmp_path / "program")
        expect_two_ranks(tmp_path / "program")


def test_the_program_of_the_installed_tree_runs(prefix, tmp_path):
    write(tmp_path)
    libraries = pkgconfig(prefix).parent
    run("gcc", tmp_path / "main.c", "-I", prefix / "include", "-L", libraries, "-lfarandole",
        f"-Wl,-rpath,{libraries}", "-o", tmp_path / "program")  # fmt: skip
    expect_two_ranks(tmp_path / "program", prefix / "bin/farandole")


def test_linkers_find_the_library_of_the_wheel(tmp_path):
    """A wheel has no symbolic links, so that -lfarandole finds a linker script there."""
    assert not (WHEEL / "libfarandole.so").is_symlink()
    write(tmp_path)
    for linker in ("bfd", "gold"):
        flags = ["-I", farandole.get_include(), "-L", WHEEL, "-lfarandole", f"-Wl,-rpath,{WHEEL}"]
        run("g++", f"-fuse-ld={linker}", tmp_path / "main.cpp", *flags, "-o", tmp_path / "program")
        expect_two_ranks(tmp_path / "program")
        assert "[libfarandole.so.0]" in run("readelf", "-d", tmp_path / "program")


def test_another_project_contains_the_sources(tmp_path):
    """FetchContent adds the sources by add_subdirectory(). Later runs reuse what is in the folder."""
    folder = Path(ROOT) / "build/around"
    write(folder, **{"CMakeLists.txt": FETCH})
    shutil.rmtree(folder / "installed", ignore_errors=True)
    without = [f"-DFARANDOLE_{name}=OFF" for name in ("LOOPBACK", "SHM", "MPI", "OFI", "CUDA", "NCCL", "METRICS")]
    run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DFARANDOLE_SOURCES={ROOT}", *without,
        "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -DHWY_COMPILE_ONLY_STATIC",
        "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0")  # fmt: skip
    run("cmake", "--build", folder / "build")
    expect_two_ranks(next((folder / "build").glob("**/in_cpp")))
    for of_a_project_of_its_own in ("bin/farandole", "libfarandole_mpi_preload*"):
        assert not list((folder / "build").glob(f"**/{of_a_project_of_its_own}"))


def test_the_library_has_a_soname_and_exports_the_c_api_alone():
    library = WHEEL / "libfarandole.so.0"
    assert "soname: [libfarandole.so.0]" in run("readelf", "-d", library)
    names = {line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()}
    declared = (WHEEL / "include/farandole/farandole.h").read_text()
    assert "fdl_allreduce" in names
    # The program, which is linked against the library, needs one symbol that is not declared.
    assert {name for name in names if f"{name}(" not in declared} == {"fdl_program_main"}
