"""Former import paths of packages that have moved. Their modules are the moved modules and not copies.

    farandole/ray/__init__.py       stand_for(__name__, "farandole.integrations.ray")

    farandole.ray            is     farandole.integrations.ray
    farandole.ray.executor   is     farandole.integrations.ray.executor

Therefore isinstance works across both paths, and pickles that name a class by its former path can be loaded.
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
    """Loads the module of the spec `there` in place of a module with a former name."""

    def __init__(self, there):
        self._there = there

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        sys.modules[module.__name__] = importlib.import_module(self._there.name)

    def get_code(self, name):  # for `python -m`
        return self._there.loader.get_code(self._there.name)


def stand_for(old, new):
    """Makes the package `old` and its modules aliases of `new` and its modules. `old` calls it during its import."""
    sys.meta_path.insert(0, _Finder(old, new))
    sys.modules[old] = importlib.import_module(new)
