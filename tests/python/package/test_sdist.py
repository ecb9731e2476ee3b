"""The source distribution: what a build needs, and nothing that a build has made. packaging/sdist.sh installs it."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from launch import ROOT
from other_projects import run

BUILD = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"


def build(sources, folder):
    """Builds it as pip and `python -m build` do; returns the file."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    printed = run(sys.executable, "-c", BUILD, folder, cwd=sources, env=environment)
    return folder / printed.split()[-1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The files that belong to the repository, and some that a build makes. The folders of a real build have so many
    that reading their names takes most of the time."""
    folder = tmp_path_factory.mktemp("sources")
    names = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    made = [
        "build/a.o",
        "build/lib/a.so",
        "dist/a.whl",
        ".venv/lib/a.pyc",
        ".pytest_cache/a",
        "bindings/torch/__pycache__/a.pyc",
    ]
    for name in [*names.strip("\0").split("\0"), *made]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name in made:
            (folder / name).write_text("made by a build")
        elif os.path.lexists(os.path.join(ROOT, name)):
            shutil.copy2(os.path.join(ROOT, name), folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def sdist(sources, tmp_path_factory):
    return build(sources, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, folder)
    return next(folder.iterdir())


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_contains_the_sources_and_the_licence(unpacked):
    names = files(unpacked)
    for folder in ("cmake", "cuda", "include", "src", "transports", "bindings/python", "bindings/torch"):
        sources = {f"{folder}/{name}" for name in files(Path(ROOT, folder)) if "__pycache__" not in name}
        assert sources and sources <= names, sources - names
    assert {"LICENSE", "CMakeLists.txt", "pyproject.toml", "README.md"} <= names
    assert (unpacked / "LICENSE").read_bytes() == Path(ROOT, "LICENSE").read_bytes()


def test_it_contains_nothing_that_a_build_makes(unpacked):
    assert not {path.name for path in unpacked.iterdir()} & {"build", "dist", ".venv", ".git", ".pytest_cache"}
    made = [name for name in files(unpacked) if name.endswith((".o", ".so", ".a", ".pyc", ".whl"))]
    assert not made


def test_its_metadata_names_version_licence_and_extras(unpacked):
    lines = (unpacked / "PKG-INFO").read_text().split("\n\n")[0].splitlines()
    assert f"Version: {run(Path(ROOT, 'build/bin/farandole'), '--version').split()[-1]}" in lines
    assert "License: Apache-2.0" in lines and "Requires-Python: >=3.9" in lines
    assert {"Provides-Extra: torch", "Provides-Extra: ray", "Provides-Extra: numpy"} <= set(lines)


def test_two_builds_give_the_same_bytes(sources, sdist, tmp_path):
    assert build(sources, tmp_path).read_bytes() == sdist.read_bytes()


def test_cmake_configures_it(unpacked, tmp_path):
    """CMake fails where a source file that a target names is missing."""
    run("cmake", "-G", "Ninja", "-S", unpacked, "-B", tmp_path, "-DFARANDOLE_PYTHON=ON",
        f"-DPython_EXECUTABLE={sys.executable}")  # fmt: skip
    (unpacked / "src/capi/world.cpp").rename(unpacked / "moved.cpp")
    with pytest.raises(AssertionError, match=r"world\.cpp"):
        run("cmake", "-S", unpacked, "-B", tmp_path)
