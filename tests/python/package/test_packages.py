"""What `farandole doctor` reports about Python and its packages."""

import json
import os
import subprocess
import sys

import farandole
import pytest
from farandole.doctor import packages
from limits import allowed

PROGRAM = os.path.join(os.path.dirname(farandole.__file__), "bin", "farandole")


@pytest.fixture
def installed(monkeypatch):
    """installed(torch="2.13.0"): the only packages that the checks find; there is no MPI."""

    def choose(**versions):
        names = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(packages, "_version", names.get)

    monkeypatch.setattr(packages, "check_mpi", lambda: None)
    choose()
    return choose


@pytest.mark.parametrize(
    "package, what, version, tried",
    [
        *[("torch", "PyTorch", version, False) for version in ("2.8.1", "3.0.0", "2.99", "nightly")],
        *[("torch", "PyTorch", version, True) for version in ("2.9.0", "2.13.0+cpu")],
        ("tensorflow", "TensorFlow", "2.11.0", False),
        ("tensorflow_cpu", "TensorFlow", "2.21.0", True),
        ("keras", "Keras", "4.0.0", False),
        ("keras", "Keras", "3.15.1", True),
        ("jax", "JAX", "0.4.38", False),
        ("jax", "JAX", "0.10.2", True),
    ],
)
def test_releases_of_frameworks_are_compared_by_numbers(installed, package, what, version, tried):
    installed(**{package: version})
    (found,) = [one for one in packages.findings() if one[1] != "Python"]
    verdict, named, text, _ = found
    assert (verdict, named) == ("good" if tried else "note", what)
    assert text.startswith(version) and ("has not been tried" in text) != tried and packages.tried_range(what) in text


VERSIONS = {
    "mpirun (Open MPI) 5.0.11\\n\\nReport bugs": "Open MPI 5.0.11",
    "HYDRA build details:\\n    Version:   4.0.2\\n": "MPICH's hydra 4.0.2",
    "Intel(R) MPI Library for Linux* OS, Version 2021.19 Build 2026": "Intel MPI 2021.19 Build 2026",
}


@pytest.mark.parametrize("printed, name", VERSIONS.items())
def test_the_mpirun_of_the_path_is_named(monkeypatch, tmp_path, printed, name):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    verdict, what, text, _ = packages.check_mpi()
    assert (verdict, what) == ("good", "MPI") and text.startswith(f"{name}, started by {mpirun};"), text


def test_an_mpirun_that_does_not_answer_and_a_missing_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.check_mpi() is None
    monkeypatch.setenv("FARANDOLE_TRANSPORT", "shm,mpi")
    assert packages.check_mpi()[0] == "warning" and "no mpirun" in packages.check_mpi()[2]
    (tmp_path / "mpirun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "mpirun").chmod(0o755)
    assert packages.check_mpi()[0] == "note"


def test_packages_that_are_missing_are_not_mentioned(installed):
    assert [one for one in packages.findings() if one[1] != "Python"] == []


def test_accelerate_and_horovod_have_a_remedy(installed):
    installed(accelerate="1.12.0", horovod="0.28.1")
    verdict, _, text, remedy = packages.check_accelerate()
    assert verdict == "note" and text.startswith("1.12.0 ") and 'init_process_group("farandole")' in remedy
    assert packages.check_horovod() is None
    installed(horovod="0.28.1", farandole_horovod="0.1.0")
    assert packages.check_horovod()[0] == "bad" and "pip uninstall" in packages.check_horovod()[3]


def test_another_python_at_the_front_of_path_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:/usr/bin")
    assert packages.check_python() is None
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.path.dirname(sys.executable)}")
    verdict, _, text, _ = packages.check_python()
    assert verdict == "warning" and f"run {other}, but this command belongs to {sys.executable}" in text
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert packages.check_python() is None


def doctor(*words, **variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}
    done = subprocess.run(
        [*words, "doctor", "--json"], env={**kept, **variables}, capture_output=True, text=True, timeout=allowed(60)
    )
    return done.returncode, {one["what"]: one for one in json.loads(done.stdout)["findings"]}


def test_the_command_reports_installed_packages(tmp_path):
    for name, version in (("torch", "9.9.0"), ("accelerate", "1.12.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    _, found = doctor(sys.executable, "-m", "farandole.launcher", PYTHONPATH=str(tmp_path))
    assert found["PyTorch"]["verdict"] == "note" and found["PyTorch"]["text"].startswith("9.9.0 has not been tried")
    assert found["Accelerate"]["verdict"] == "note" and "ddp_backend" in found["Accelerate"]["text"]


def test_the_program_reads_findings_of_any_form():
    one = ("warning", "thing", 'with "quotes", : and é', "do it")
    text = packages.as_text([("bad", "worse", "it is", ""), one])
    code, found = doctor(PROGRAM, FARANDOLE_RUN_FINDINGS=text)
    assert code == 78 and found["worse"] == {"what": "worse", "verdict": "bad", "text": "it is", "remedy": ""}
    assert list(found["thing"].values()) == ["thing", "warning", 'with "quotes", : and é', "do it"]
    for broken in ("nonsense", "\x1e\x1e", "good", "unknown\x1fwhat\x1ftext\x1f\x1f\x1e", "\x1f" * 9):
        _, found = doctor(PROGRAM, FARANDOLE_RUN_FINDINGS=broken)
        assert "cores" in found and not {"what", "nonsense"} & set(found)
