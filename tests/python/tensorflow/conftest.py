"""These tests need TensorFlow, which is not in the environment of tests/setup.sh: tests/frameworks/run.sh runs them."""

import importlib
import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    _release = tuple(map(int, importlib.import_module("tensorflow").__version__.split(".")[:2]))
    # The ops of tf.numpy_function compute the same, but have no classes of errors and no asynchronous kernels.
    collect_ignore_glob = ["test_errors.py", "test_graphs.py"] if _release < (2, 13) else []
    if _release < (2, 19):  # FARANDOLE_TENSORFLOW_XLA=1 is an error there: test_errors.py
        collect_ignore_glob += ["test_xla.py"]
    if _release >= (2, 16) and importlib.util.find_spec("tf_keras") is None:
        collect_ignore_glob += ["test_keras_2.py"]
