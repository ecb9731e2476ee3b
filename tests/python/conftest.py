"""Lets test modules import the launcher that stands beside them."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
