"""The checks of test_keras_fit.py and test_keras_optimizer.py, which one pair of processes runs on each backend.

Those of test_keras_fit.py are first: one of them calls init.
"""

from test_keras_fit import *  # noqa: F403
from test_keras_optimizer import *  # noqa: F403
