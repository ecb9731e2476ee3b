"""The backends of Keras that are installed, and jobs whose ranks use one of them."""

import importlib.util
import os
import sys

import launch

KNOWN = ["tensorflow", "torch", "jax"]
INSTALLED = [one for one in KNOWN if importlib.util.find_spec("keras") and importlib.util.find_spec(one)]
DEADLINE_S = 240  # importing Keras and compiling steps take long where many processes share few cores


def variables(backend):
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "",
            "FARANDOLE_START_TIMEOUT_S": "200"}  # fmt: skip


def require(module, backend, check, size=2):
    """Asserts that `check` of a module passed on all ranks with that backend."""
    # Interpreters of their own: TensorFlow and JAX do not work after a fork.
    launch.require(sys.modules[module], size, check, variables(backend), DEADLINE_S, fresh=True)


def environment(backend):
    """The environment of a launcher whose ranks use that backend."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE_", "HOROVOD_"))}
    return {**clean, "OMP_NUM_THREADS": "1", **variables(backend)}
