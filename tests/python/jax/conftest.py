"""These tests need JAX. tests/frameworks/run.sh runs them in environments that have it."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("jax") else ["test_*"]
