"""`cpack` makes Debian packages and an archive; another project uses what is in them, unpacked into a folder."""

import os
import shutil
from pathlib import Path

import farandole
import pytest
from launch import ROOT
from other_projects import expect_two_ranks, run, write

VERSION = farandole.__version__


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the packages, and {name: file} of those for Debian."""
    folder = tmp_path_factory.mktemp("packages")
    run("cmake", "--build", os.path.join(ROOT, "build"), "--target", "farandole_wheel")
    run("cpack", "--config", os.path.join(ROOT, "build", "CPackConfig.cmake"), "-B", folder)
    return folder, {path.name.split("_")[0]: path for path in folder.glob("*.deb")}


def field(package, name):
    return run("dpkg-deb", "--field", package, name).strip()


def test_debian_packages_depend_on_each_other_and_on_libraries(made):
    _, packages = made
    assert sorted(packages) == ["farandole", "libfarandole-dev", "libfarandole0"]
    for name, package in packages.items():
        assert package.name == f"{name}_{VERSION}_{run('dpkg', '--print-architecture').strip()}.deb"
        assert (field(package, "Package"), field(package, "Version")) == (name, VERSION)
    libraries = field(packages["libfarandole0"], "Depends")
    # dpkg-shlibdeps names the packages of the libraries that the files are linked against.
    assert "libc6 (>=" in libraries and "libhwloc15" in libraries and "libspdlog" in libraries
    assert field(packages["libfarandole-dev"], "Depends") == f"libfarandole0 (= {VERSION})"
    assert f"libfarandole0 (= {VERSION})" in field(packages["farandole"], "Depends")
    control = run("dpkg-deb", "--ctrl-tarfile", packages["libfarandole0"], text=False)
    assert b"libfarandole 0 libfarandole0" in control and b"ldconfig" in control


def test_debian_packages_are_used_from_a_folder(made, tmp_path):
    _, packages = made
    for package in packages.values():
        run("dpkg-deb", "--extract", package, tmp_path / "root")
    usr = tmp_path / "root/usr"
    write(tmp_path / "program")
    flags = ["-I", usr / "include", "-L", usr / "lib", "-lfarandole", f"-Wl,-rpath,{usr / 'lib'}"]
    run("g++", tmp_path / "program/main.cpp", *flags, "-o", tmp_path / "program/hello")
    expect_two_ranks(tmp_path / "program/hello", usr / "bin/farandole")
    for name in packages:
        copyright = (usr / "share/doc" / name / "copyright").read_text()
        assert copyright.startswith(Path(ROOT, "LICENSE").read_text())
        assert "---- libcli11-dev ----" in copyright and "---- libflatbuffers-dev ----" in copyright


def test_the_archive_is_used_from_a_folder(made, tmp_path):
    folder, _ = made
    shutil.unpack_archive(next(folder.glob("*.tar.gz")), tmp_path)
    (unpacked,) = tmp_path.iterdir()
    assert unpacked.name == f"farandole-{VERSION}-linux-{os.uname().machine}"
    environment = {**os.environ, "PKG_CONFIG_PATH": str(unpacked / "lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "farandole", env=environment).split()
    write(tmp_path / "program")
    run("gcc", tmp_path / "program/main.c", *flags, f"-Wl,-rpath,{unpacked / 'lib'}", "-o", tmp_path / "program/hello")
    expect_two_ranks(tmp_path / "program/hello", unpacked / "bin/farandole")
