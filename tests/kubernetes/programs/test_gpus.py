"""Tests of the variable that chooses the backend of reductions on GPUs, on fakes of CUDA and NCCL."""

import os
import subprocess
import sys

import pytest
from farandole import launcher
from manifest_checks import KUBERNETES, ROOT, env_of, generated, only, read

LIBRARIES = ROOT / "build" / "lib"
CUDA, NCCL = LIBRARIES / "libfake_cuda.so", LIBRARIES / "libfake_nccl.so"
PROGRAM = """
import sys
import numpy as np
import farandole, fake_devices

farandole.init()
one = fake_devices.array(np.full(1000, farandole.rank() + 1, "float32"), device=farandole.local_rank())
total = farandole.allreduce(one, name="gradient", op=farandole.SUM)
assert isinstance(total, fake_devices.Array) and (total.get() == 3).all()
farandole.shutdown()
"""


def job(*options):
    words = ["job", "--nnodes", "2", "--gpus", "1", "--image", "any", *options, "--", "python", "train.py"]
    return only(generated(words), "Job")["spec"]["template"]


def train(nccl, *options, **more):
    """Two ranks with a device each, with the variables that the manifest gives to its pods."""
    if not (CUDA.exists() and NCCL.exists()):
        pytest.skip("the fakes are not built: bash tests/run.sh python builds them")
    chosen = {name: value for name, value in env_of(job(*options)).items() if name == "FARANDOLE_DEVICE_COLLECTIVES"}
    variables = {
        **os.environ,
        **chosen,
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT / "tests" / "python" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "FARANDOLE_CUDA_LIBRARY": str(CUDA),
        "FARANDOLE_NCCL_LIBRARY": str(nccl),
        "FAKE_CUDA_DEVICES": "8",
        "FARANDOLE_START_TIMEOUT_S": "100",
        **more,
    }
    return subprocess.run([launcher.program(), "run", "-np", "2", "--", sys.executable, "-c", PROGRAM],
                          capture_output=True, text=True, env=variables, timeout=150)  # fmt: skip


def test_h11_a_variable_of_the_job_chooses_nccl_or_the_host():
    """An NCCL whose first reduction fails shows whether it was called."""
    by_nccl, by_host = (("--env", f"FARANDOLE_DEVICE_COLLECTIVES={word}") for word in ("nccl", "staged"))
    done = train(NCCL, *by_nccl)
    assert done.returncode == 0, done.stderr
    assert train(NCCL, *by_nccl, FAKE_NCCL_FAIL="AllReduce:1:2").returncode != 0
    done = train(NCCL, *by_host, FAKE_NCCL_FAIL="AllReduce:1:2")
    assert done.returncode == 0, done.stderr


def test_h11_without_nccl_a_job_that_demands_it_fails_and_any_other_uses_the_host():
    demanded = train("/no/libnccl.so", "--env", "FARANDOLE_DEVICE_COLLECTIVES=nccl")
    assert demanded.returncode != 0 and "nccl" in demanded.stderr.lower() and "/no/libnccl.so" in demanded.stderr, (
        demanded.stderr
    )
    preferred = train("/no/libnccl.so")
    assert preferred.returncode == 0, preferred.stderr


def test_h11_the_gpu_example_needs_no_variable_for_it():
    pods = only(read(KUBERNETES / "k8s" / "job-gpu-efa.yaml"), "Job")["spec"]["template"]
    assert not {name for name in env_of(pods) if "NCCL" in name or name == "FARANDOLE_DEVICE_COLLECTIVES"}
