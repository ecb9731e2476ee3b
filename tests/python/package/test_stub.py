"""The stub of the package: it declares what the package exports, with the parameters that the functions have."""

import ast
import inspect
import os

import farandole
import pytest
from launch import ROOT

STUB = os.path.join(ROOT, "bindings", "python", "farandole", "__init__.pyi")


def _nodes(body):
    return {one.name: one for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}


with open(STUB) as file:
    TREE = ast.parse(file.read())
DECLARED = _nodes(TREE.body)
FUNCTIONS = {name: node for name, node in DECLARED.items() if isinstance(node, ast.FunctionDef)}
CLASSES = {name: node for name, node in DECLARED.items() if isinstance(node, ast.ClassDef)}


def _parameters_of_stub(node):
    """[(name, kind, has a default)]"""
    given = node.args
    positional = [one.arg for one in given.args]
    optional = positional[len(positional) - len(given.defaults) :]
    found = [(name, "positional", name in optional) for name in positional]
    found += [(one.arg, "keyword", value is not None) for one, value in zip(given.kwonlyargs, given.kw_defaults)]
    found += [(given.vararg.arg, "several", False)] if given.vararg else []
    return found + ([(given.kwarg.arg, "keywords", False)] if given.kwarg else [])


def _parameters(function):
    kinds = {"POSITIONAL_OR_KEYWORD": "positional", "KEYWORD_ONLY": "keyword", "VAR_POSITIONAL": "several",
             "VAR_KEYWORD": "keywords"}  # fmt: skip
    return [
        (one.name, kinds[one.kind.name], one.default is not one.empty)
        for one in inspect.signature(function).parameters.values()
    ]


def _names_of_stub():
    names = set(DECLARED)
    for node in TREE.body:
        if isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names.update(one.id for one in node.targets)
        elif isinstance(node, ast.ImportFrom):
            names.update(one.name for one in node.names)
    return names


def test_the_stub_declares_all_exported_names():
    assert set(farandole.__all__) - _names_of_stub() == set()
    exported = next(one.value for one in TREE.body if isinstance(one, ast.Assign) and one.targets[0].id == "__all__")
    assert ast.literal_eval(exported) == farandole.__all__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_declared_parameters(name):
    assert _parameters_of_stub(FUNCTIONS[name]) == _parameters(getattr(farandole, name))


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "Op"])
def test_methods_have_the_declared_parameters(name):
    for method, node in _nodes(CLASSES[name].body).items():
        there = inspect.getattr_static(getattr(farandole, name), method)
        if isinstance(there, property):
            assert any(getattr(one, "id", "") == "property" for one in node.decorator_list), method
        elif method != "__exit__":
            assert _parameters_of_stub(node) == _parameters(there), method


def test_operators_are_declared():
    declared = [one.targets[0].id for one in CLASSES["Op"].body]
    assert sorted(declared) == sorted(farandole.Op.__members__)


def test_the_package_says_that_it_has_types():
    assert os.path.exists(os.path.join(os.path.dirname(farandole.__file__), "py.typed"))
