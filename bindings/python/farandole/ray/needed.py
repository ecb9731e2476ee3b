"""Needed: Ray, or an error that says how to get it."""

import importlib
from types import ModuleType


def ray_module(user: str, name: str = "ray", package: str = "ray") -> ModuleType:
    """The module `name` of Ray. ImportError where it is not installed: `user` needs it, and pip calls it `package`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{user} needs Ray, and `import {name}` failed: {error}. pip install '{package}'") from error
