"""The tests of farandole.keras run where Keras is installed, on each of its backends that is installed too."""

import importlib.util
import os

import keras_backends

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if keras_backends.INSTALLED:  # the process of pytest imports the modules with the checks, and runs no rank
    os.environ.setdefault("KERAS_BACKEND", keras_backends.INSTALLED[0])
else:
    collect_ignore_glob = ["test_*.py"]
if "tensorflow" not in keras_backends.INSTALLED:
    collect_ignore = ["test_keras_xla.py"]


def pytest_report_header():
    if not importlib.util.find_spec("keras"):
        return "tests/python/keras: not run, because Keras is not installed"
    return f"tests/python/keras: Keras on {', '.join(keras_backends.INSTALLED) or 'none of its backends'}"
