"""Imports of packages that only some users have, with an installation hint."""

import importlib
from types import ModuleType


def import_needed(user: str, name: str, project: str, package: str) -> ModuleType:
    """Imports and returns the module `name` of `project`.

    ImportError if it is not installed. The text names `user`, which needs it, and `package`, its name for pip.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{user} needs {project}, and `import {name}` failed: {error}. pip install '{package}'"
        ) from error
