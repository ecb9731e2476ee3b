"""packaging/wheel.py: what a wheel for several versions of Python contains. Its native files are made up here."""

import base64
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = ["3.9", f"{sys.version_info.major}.{sys.version_info.minor}"]


def write(folder, out, epoch="1700000000"):
    """Runs packaging/wheel.py on the tree and the dependencies in `folder`."""
    command = [sys.executable, ROOT / "packaging/wheel.py", "--tree", folder / "tree", "--prefix", folder / "prefix"]
    command += ["--architecture", platform.machine(), "--glibc", "2.28", "--out", out]
    for python in PYTHONS:
        command += ["--python", python]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    made = folder / "tree/farandole"
    (made / "bin").mkdir(parents=True)
    for name in ("libfarandole.so.0", "_native.cpython-39-x.so", "bin/farandole"):
        (made / name).write_bytes(name.encode() * 1000)
    (made / "bin/farandole").chmod(0o755)
    for name, version in (("hwloc", "2.9.0-1"), ("pybind11", "3.1.0")):
        kept = folder / "prefix/licenses" / name
        kept.mkdir(parents=True)
        (kept / "version").write_text(version + "\n")
        (kept / "copyright").write_text(f"the licence of {name}\n")
    return folder


@pytest.fixture(scope="module")
def wheel(folder):
    return write(folder, folder / "dist")


def info(wheel):
    """Name to bytes of the files in .dist-info."""
    with zipfile.ZipFile(wheel) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist() if ".dist-info/" in name}


def test_the_tags_name_each_python_and_the_oldest_glibc(wheel):
    tags = [f"cp{python.replace('.', '')}-none-manylinux_2_28_{platform.machine()}" for python in PYTHONS]
    pythons = ".".join(tag.split("-")[0] for tag in tags)
    assert wheel.name.endswith(f"-{pythons}-none-manylinux_2_28_{platform.machine()}.whl")
    stated = [line[5:] for line in info(wheel)["WHEEL"].decode().splitlines() if line.startswith("Tag: ")]
    assert stated == tags


def test_the_same_inputs_give_the_same_bytes(folder, wheel):
    assert write(folder, folder / "again").read_bytes() == wheel.read_bytes()
    assert write(folder, folder / "later", "1700009999").read_bytes() != wheel.read_bytes()


def test_the_record_has_the_hash_and_size_of_every_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        lines = {}
        for line in info(wheel)["RECORD"].decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            lines[name] = (digest, size)
        assert set(lines) == set(archive.namelist())
        for name, (digest, size) in lines.items():
            if name.endswith("/RECORD"):
                assert (digest, size) == ("", "")
                continue
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(data))), name


def test_the_program_is_executable_and_the_sources_are_there(wheel):
    with zipfile.ZipFile(wheel) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["farandole/bin/farandole"] == 0o100755 and modes["farandole/libfarandole.so.0"] == 0o100644
    assert "farandole/torch/__init__.py" in modes and not any("__pycache__" in name for name in modes)


def test_licences_and_the_list_of_contents(wheel):
    files = info(wheel)
    assert files["licenses/third-party/hwloc.txt"] == b"the licence of hwloc\n"
    assert files["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    bill = json.loads(files[f"sboms/{platform.machine()}.cdx.json"])
    assert bill["bomFormat"] == "CycloneDX"
    assert [(part["name"], part["version"], part["purl"]) for part in bill["components"]] == [
        ("hwloc", "2.9.0-1", "pkg:deb/debian/hwloc@2.9.0-1"),
        ("pybind11", "3.1.0", "pkg:pypi/pybind11@3.1.0"),
    ]


def test_pip_installs_it(wheel, tmp_path):
    options = ["--quiet", "--no-index", "--no-deps", "--target", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, wheel],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "farandole/libfarandole.so.0").read_bytes() == b"libfarandole.so.0" * 1000
    points = info(wheel)["entry_points.txt"].decode()
    assert "farandole = farandole.launcher:main" in points and "[torch.backends]" in points


def test_the_installation_page_lists_the_extras():
    page = (ROOT / "docs/install.md").read_text()
    listed = set(",".join(re.findall(r"`farandole\[([\w,]+)\]`", page)).split(","))
    text = (ROOT / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]\n")[1].split("\n\n")[0]
    assert listed == set(re.findall(r"^(\w+) = \[", section, re.M))
