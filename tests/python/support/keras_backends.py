"""The backends of Keras that are installed, and jobs whose ranks use one of them."""

import importlib.util
import os

import launch

KNOWN = ["tensorflow", "torch", "jax"]
INSTALLED = [one for one in KNOWN if importlib.util.find_spec("keras") and importlib.util.find_spec(one)]
DEADLINE_S = 240  # importing Keras and compiling steps take long where many processes share few cores


def variables(backend):
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "",
            "FARANDOLE_START_TIMEOUT_S": "200"}  # fmt: skip


def require(module, backend, check):
    """Asserts that `check` of the module passed on two ranks with that backend."""
    launch.require(module, 2, check, variables(backend), 2 * DEADLINE_S)


def environment(backend):
    """The environment of a launcher whose ranks use that backend."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return {**clean, "OMP_NUM_THREADS": "1", **variables(backend)}
