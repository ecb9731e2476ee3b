"""These tests need TensorFlow, which is not in the environment of tests/setup.sh: tests/frameworks/run.sh runs them."""

import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]
