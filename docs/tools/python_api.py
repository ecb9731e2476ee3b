"""Reads the public functions and classes of the Python packages, without importing them, and writes their reference.

Public are the names of `__all__`. In a module without one they are the names that it defines, and in the __init__ of a
package also those that it imports from farandole, without names that begin with an underscore.
"""

import ast
import os

# Where each package lies in the source tree; the wheel joins them.
ROOTS = (
    ("farandole.torch", "bindings/torch/farandole/torch"),
    ("farandole.keras", "bindings/keras/farandole/keras"),
    ("farandole.tensorflow", "bindings/tensorflow/farandole/tensorflow"),
    ("farandole.jax", "bindings/jax/farandole/jax"),
    ("farandole", "bindings/python/farandole"),
)

# The modules that programs import, in the order of the reference, each with the title of its page.
MODULES = (
    ("farandole", "collectives on arrays"),
    ("farandole.torch", "Horovod's API for PyTorch"),
    ("farandole.torch.distributed", "a backend for torch.distributed"),
    ("farandole.torch.elastic", "elastic jobs with PyTorch"),
    ("farandole.keras", "Horovod's API for Keras 3"),
    ("farandole.keras.callbacks", "callbacks for Keras"),
    ("farandole.keras.elastic", "elastic jobs with Keras"),
    ("farandole.tensorflow", "Horovod's API for TensorFlow"),
    ("farandole.tensorflow.elastic", "elastic jobs with TensorFlow"),
    ("farandole.jax", "Horovod's functions for JAX"),
    ("farandole.jax.elastic", "elastic jobs with JAX"),
    ("farandole.elastic", "elastic jobs"),
    ("farandole.checkpoint", "checkpoints"),
    ("farandole.errors", "errors"),
    ("farandole.integrations.kubernetes", "manifests for Kubernetes"),
    ("farandole.integrations.ray", "Ray"),
    ("farandole.integrations.spark", "Spark"),
    ("farandole.integrations.dask", "Dask"),
)


class Public:
    """A public name: where programs find it, and the syntax tree that defines it (None for plain values)."""

    def __init__(self, name, node, home):
        self.name = name
        self.node = node
        self.home = home

    @property
    def is_class(self):
        return isinstance(self.node, ast.ClassDef)

    @property
    def is_function(self):
        return isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef))

    @property
    def docstring(self):
        return ast.get_docstring(self.node) if self.node is not None else None


class Sources:
    """The modules of the source tree, parsed on demand."""

    def __init__(self, repository):
        self.repository = repository
        self.parsed = {}

    def path(self, module):
        for package, folder in ROOTS:
            if module == package or module.startswith(package + "."):
                base = os.path.join(self.repository, folder, *module[len(package) :].strip(".").split("."))
                for path in (base.rstrip("/") + ".py", os.path.join(base, "__init__.py")):
                    if os.path.exists(path):
                        return path
        return None

    def tree(self, module):
        if module not in self.parsed:
            path = self.path(module)
            if path is None:
                return None
            with open(path) as file:
                self.parsed[module] = ast.parse(file.read())
        return self.parsed[module]

    def is_package(self, module):
        return (self.path(module) or "").endswith("__init__.py")

    def origin(self, module, statement):
        """The module that a `from ... import` statement of `module` names."""
        if statement.level == 0:
            return statement.module
        parts = module.split(".")
        parts = parts[: len(parts) - statement.level + (1 if self.is_package(module) else 0)]
        return ".".join([*parts, *([statement.module] if statement.module else [])])

    def find(self, module, name, seen=()):
        """The Public of `name` as `module` has it; None for what cannot be found without running code."""
        tree = self.tree(module)
        if tree is None or (module, name) in seen:
            return None
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name and node in tree.body:
                return Public(name, node, module)
            if isinstance(node, ast.ImportFrom):
                origin = self.origin(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) not in (name, "*") or not (origin or "").startswith("farandole"):
                        continue
                    found = self.find(origin, name if alias.name == "*" else alias.name, (*seen, (module, name)))
                    if found is not None:
                        return Public(name, found.node, found.home)
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self._assigned(module, name, node.value, (*seen, (module, name)))
        if name in ("FarandoleConfig", "FarandoleTrainer"):  # imported when first used, with Ray Train
            return self.find("farandole.integrations.ray.train", name)
        return None

    def declared(self, module):
        """The names of `__all__`, or None. It may be a sum of lists and of other modules' `__all__`."""
        for node in self.tree(module).body:
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == "__all__" for target in node.targets):
                return self._names(module, node.value)
        return None

    def _names(self, module, value):
        if isinstance(value, ast.BinOp):
            return self._names(module, value.left) + self._names(module, value.right)
        if isinstance(value, ast.Attribute) and value.attr == "__all__":
            for node in self.tree(module).body:
                if isinstance(node, ast.ImportFrom) and value.value.id in [one.name for one in node.names]:
                    return self.declared(f"{self.origin(module, node)}.{value.value.id}") or []
        return list(ast.literal_eval(value))

    def _assigned(self, module, name, value, seen):
        """The Public of a name that is assigned: of the function that is another name for it, or a plain value."""
        found = None
        if isinstance(value, ast.Name):
            found = self.find(module, value.id, seen)
        elif isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            found = self.find(f"{module.rpartition('.')[0]}.{value.value.id}", value.attr, seen)
        elif isinstance(value, ast.Call) and module != "farandole":  # made by a function: described where it is defined
            found = self.find("farandole", name, seen)
        if found is not None and found.docstring:
            return Public(name, found.node, found.home)
        return Public(name, None, module)

    def values(self, module):
        """The public names that are neither functions nor classes nor modules."""
        names = self.declared(module) or []
        found = [self.find(module, name) for name in names if not name.startswith("_")]
        return [one.name for one in found if one is not None and one.node is None]

    def public(self, module):
        """The public functions and classes of a module, in the order in which it names them."""
        tree = self.tree(module)
        names = self.declared(module)
        if names is None:
            names = [name for name in self._unlisted(module, tree) if not name.startswith("_")]
        found = [self.find(module, name) for name in dict.fromkeys(names)]
        return [one for one in found if one is not None and (one.is_class or one.is_function)]

    def _unlisted(self, module, tree):
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.ImportFrom) and self.is_package(module):
                origin = self.origin(module, node)
                if origin and origin.startswith("farandole"):
                    yield from (alias.asname or alias.name for alias in node.names)


def signature(node):
    arguments = ast.parse(ast.unparse(node)).body[0].args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    for one in [*arguments.args, *arguments.kwonlyargs, *arguments.posonlyargs]:
        one.annotation = None
    return ast.unparse(arguments)


def methods(node):
    """The public methods and properties of a class, with its constructor first."""
    for one in node.body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and not one.name.startswith("_"):
            yield one


def constructor(node):
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            return signature(one)
    return ""


def undocumented(sources):
    """The public functions and classes without a docstring, each once, by the module that defines them."""
    missing = {}
    for module, _ in MODULES:
        for one in sources.public(module):
            if not one.docstring:
                missing.setdefault(f"{one.home}.{one.name}", module)
    return sorted(missing)


def page(sources, module, title):
    """The Markdown page of one module."""
    heading = f"# {module}: {title}"
    parts = [heading, "", f"````{{py:module}} {module}", "````", "", ast.get_docstring(sources.tree(module)) or "", ""]
    for one in sources.public(module):
        if one.is_function:
            parts += [f"````{{py:function}} {one.name}({signature(one.node)})", "", one.docstring or "", "````", ""]
            continue
        arguments = constructor(one.node)
        parts += [f"`````{{py:class}} {one.name}{f'({arguments})' if arguments else ''}", "", one.docstring or "", ""]
        for method in methods(one.node):
            is_property = any(ast.unparse(mark).endswith("property") for mark in method.decorator_list)
            directive = "property" if is_property else "method"
            head = method.name if is_property else f"{method.name}({signature(method)})"
            parts += [f"````{{py:{directive}}} {head}", "", ast.get_docstring(method) or "", "````", ""]
        parts += ["`````", ""]
    if sources.values(module):
        parts += ["Other names: " + ", ".join(f"`{name}`" for name in sources.values(module)) + ".", ""]
    return "\n".join(parts)
