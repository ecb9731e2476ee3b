"""Tests of the package farandole-kubernetes: the generator alone, for workstations without Linux."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from farandole.integrations.kubernetes import generate
from manifest_checks import ROOT

SOURCES = ROOT / "bindings" / "python" / "farandole" / "integrations" / "kubernetes"
JOBS = [
    "job --nnodes 2:4 --instance-type p4d.24xlarge --efa all --nproc-per-node gpu",
    "mpijob --nnodes 2",
    "trainjob --nnodes 2",
    "rayjob --nnodes 2:4",
    "katib --parameter lr:double:0.001:0.1",
]
# Python's modules that Windows or macOS lack, and everything of the wheel `farandole`.
ABSENT = ["fcntl", "grp", "pwd", "resource", "termios", "pty", "syslog", "farandole", "numpy"]
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
sys.path[:0] = sys.argv[1:3]
import importlib, zipfile
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    if name.endswith(".py") and not name.endswith("__main__.py"):
        importlib.import_module(name[:-3].replace("/", ".").removesuffix(".__init__"))
from farandole_kubernetes.__main__ import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--wheel-dir", folder, ROOT / "bindings" / "kubernetes"], check=True
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_has_the_generators_own_files_and_no_native_code(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    own = {f"farandole_kubernetes/{path.relative_to(SOURCES)}": path.read_bytes() for path in SOURCES.rglob("*.py")}
    assert packed == own
    assert "Requires-Dist: PyYAML>=5.4\n" in metadata and metadata.count("Requires-Dist") == 1


@pytest.mark.parametrize("job", JOBS)
def test_without_linux_and_without_farandole_gen_prints_the_same(wheel, job):
    words = [*job.split(), *"--image farandole:0.1.0 -- python train.py".split()]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, wheel, str(Path(yaml.__file__).parents[1]), "gen", *words],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == generate(words)
