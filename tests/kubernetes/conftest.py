"""Fixtures of the tests of Kubernetes: data, images, and running simulations."""

import gzip
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SUPPORT = os.path.join(HERE, "support")
sys.path[:0] = [os.path.join(HERE, "simulator"), SUPPORT, HERE]
pytest.register_assert_rewrite("elastic_pods", "live_commands", "manifest_checks", "mpi_jobs", "training_jobs")

import mpi_jobs  # noqa: E402
import podsim  # noqa: E402

WHY_NOT = podsim.why_not()
# The files that take longest begin first: at the end no worker runs one of them while the others have no work.
LONGEST = ("test_ray.py", "test_takeover_in_pods.py", "test_elastic_pods.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def numbering():
    """Skips tests of controllers' variables with a `farandole` that is too old."""
    program = os.path.join(os.path.dirname(sys.executable), "farandole")
    if "sshd-init" not in subprocess.run([program, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("this farandole has no sshd-init, and its run does not read controllers' variables")


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """scikit-learn's digits as one file, without importing scikit-learn."""
    place = os.path.dirname(importlib.util.find_spec("sklearn").origin)
    with gzip.open(os.path.join(place, "datasets", "data", "digits.csv.gz")) as file:
        rows = np.array([[float(word) for word in line.split(b",")] for line in file])
    path = tmp_path_factory.mktemp("data") / "digits.npy"
    np.save(path, rows)
    return str(path)


@pytest.fixture
def image(tmp_path):
    return mpi_jobs.sshd_image(tmp_path)


@pytest.fixture
def simulate(digits):
    """simulate(manifest, ...) returns a running PodSim, which ends with the test."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    sims = []

    def run_pods(manifest, **options):
        image = {
            "/data/digits.npy": digits,
            "/app/train_digits.py": os.path.join(SUPPORT, "train_digits.py"),
            **options.pop("image", {}),
        }
        variables = {
            "DIGITS": "/data/digits.npy",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            **options.pop("variables", {}),
        }
        sim = podsim.PodSim(manifest, image=image, variables=variables, **options)
        sims.append(sim)
        sim.start()
        return sim

    yield run_pods
    for sim in sims:
        sim.end()


@pytest.fixture
def elastic(simulate, tmp_path):
    """simulate() with the elastic programs in the image, and the file in which end_training() tells them to end."""
    (tmp_path / "end").touch()
    image = {
        "/app/end": str(tmp_path / "end"),
        **{f"/app/{name}.py": os.path.join(SUPPORT, f"{name}.py") for name in ("train_digits_elastic", "train_digits")},
    }
    return lambda documents, **more: simulate(documents, image=image, **more)
