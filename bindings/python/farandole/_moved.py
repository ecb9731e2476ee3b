"""Old import paths of packages that have moved: the modules found there are the moved ones, and no copies of them.

    farandole/ray/__init__.py       stand_for(__name__, "farandole.integrations.ray")

    farandole.ray            is     farandole.integrations.ray
    farandole.ray.executor   is     farandole.integrations.ray.executor

So isinstance holds between the two, and pickles that name a class by its old path load.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec


class _Finder:
    """Finds the modules of the package `old` among those of `new`."""

    def __init__(self, old, new):
        self._old, self._new = old + ".", new + "."

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(self._old):
            return None
        there = importlib.util.find_spec(self._new + name[len(self._old) :])
        return None if there is None else ModuleSpec(name, _Loader(there), origin=there.origin)


class _Loader:
    """Puts the module with the spec `there` into the place of the one that is to be loaded."""

    def __init__(self, there):
        self._there = there

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        sys.modules[module.__name__] = importlib.import_module(self._there.name)

    def get_code(self, name):  # for `python -m`
        return self._there.loader.get_code(self._there.name)


def stand_for(old, new):
    """For the package `old`, which calls this when it is imported: it and its modules are `new` and its modules."""
    sys.meta_path.insert(0, _Finder(old, new))
    sys.modules[old] = importlib.import_module(new)
