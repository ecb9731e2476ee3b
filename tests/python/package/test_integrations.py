"""farandole.integrations: the earlier import paths are the same modules, and the packages import each other in one
direction."""

import ast
import os
import pickle
import subprocess
import sys

import farandole
import pytest
from limits import allowed

HERE = os.path.join(os.path.dirname(farandole.__file__), "integrations")
KINDS = ("kubernetes", "ray")
MODULES = sorted(
    f"{kind}.{file.removesuffix('.py')}"
    for kind in KINDS
    for file in os.listdir(os.path.join(HERE, kind))
    if file.endswith(".py") and file != "__init__.py"
)
RUNNABLE = "kubernetes.__main__"
NEEDS_RAY = "ray.train"  # a module of classes of Ray Train's


def python(*words, **more):
    """The output of a new interpreter, and its exit code."""
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=allowed(60), **more)


def output_of(program):
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_packages_have_modules():
    assert {"kubernetes.generator", "kubernetes.document", "ray.executor", NEEDS_RAY, RUNNABLE} <= set(MODULES)


@pytest.mark.parametrize(
    "first, second", [("farandole", "farandole.integrations"), ("farandole.integrations", "farandole")]
)
def test_every_module_is_the_same_by_both_paths_in_either_order(first, second):
    names = [*KINDS, *(one for one in MODULES if one != NEEDS_RAY)]
    program = f"""
import importlib, sys
for name in {names}:
    one = importlib.import_module("{first}." + name)
    other = importlib.import_module("{second}." + name)
    assert one is other is sys.modules["farandole." + name], name
    assert one.__name__ == one.__spec__.name == "farandole.integrations." + name, one.__spec__
    assert getattr(sys.modules["farandole." + name.rpartition(".")[0]] if "." in name else sys.modules["farandole"],
                   name.rpartition(".")[2]) is one, name
print("same")
"""
    assert output_of(program) == ["same"]


def test_names_of_ray_train_are_equal_by_both_paths():
    program = f"""
import importlib
found = []
for place in ("farandole.", "farandole.integrations."):
    try:
        found.append(importlib.import_module(place + "{NEEDS_RAY}").FarandoleTrainer)
    except ImportError as error:
        found.append(str(error))
assert found[0] is found[1] or found[0] == found[1] and "needs Ray" in found[0], found
print("same")
"""
    assert output_of(program) == ["same"]


def test_statements_that_import_from_the_earlier_paths():
    program = """
from farandole.kubernetes.generator import documents_of
from farandole.kubernetes import WrongCombination, generate
from farandole import kubernetes, ray
import farandole.ray.executor as executor
from farandole.ray import RayExecutor, Settings, ray_logger
import horovod.ray, horovod.ray.runner, horovod.ray.ray_logger
import farandole.integrations.kubernetes.generator, farandole.integrations.ray as moved
assert farandole.integrations.kubernetes.generator.documents_of is documents_of
assert kubernetes is farandole.integrations.kubernetes and kubernetes.generate is generate
assert ray is moved and executor is moved.executor and executor.RayExecutor is RayExecutor
assert isinstance(moved.RayExecutor(num_workers=1), RayExecutor) and ray_logger is moved.ray_logger
assert isinstance(RayExecutor(min_workers=1), farandole.ray.elastic_executor.ElasticRayExecutor)
assert horovod.ray.RayExecutor is horovod.ray.runner.RayExecutor is RayExecutor
assert horovod.ray.ray_logger.log is ray_logger.log
print("same")
"""
    assert output_of(program) == ["same"]


def test_pickles_that_name_the_earlier_paths_load():
    from farandole.integrations.ray.placement import Member
    from farandole.integrations.ray.worker import Facts, Secret

    things = {"placement": Member(0, 1, 0, 1, 0, 1), "worker": Facts("n", "h", "a", 1, "h", ("0",))}
    for module, thing in [*things.items(), ("worker", Secret("k"))]:
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            data = pickle.dumps(thing, protocol)
            new, old = type(thing).__module__.encode(), f"farandole.ray.{module}".encode()
            assert new in data
            if protocol == 2:  # names without lengths in front of them
                earlier = data.replace(new, old)
                program = (
                    f"import pickle; one = pickle.loads({earlier!r}); print(type(one).__module__, type(one).__name__)"
                )
                assert output_of(program) == [type(thing).__module__, type(thing).__name__]
    error = output_of("import pickle, farandole.kubernetes; "
                "print(pickle.loads(b'cfarandole.kubernetes.errors\\nWrongCombination\\n.') "
                "is farandole.integrations.kubernetes.WrongCombination)")  # fmt: skip
    assert error == ["True"]


def test_the_command_runs_by_both_paths():
    words = ["gen", "job", "--image", "x", "--", "python", "train.py"]
    moved = python("-m", "farandole.integrations.kubernetes", *words)
    earlier = python("-m", "farandole.kubernetes", *words)
    assert moved.returncode == earlier.returncode == 0, moved.stderr + earlier.stderr
    assert moved.stdout == earlier.stdout and "kind: Job" in moved.stdout
    assert earlier.stderr == moved.stderr == ""


@pytest.mark.parametrize("name", ["ray.nonsense", "kubernetes.nonsense", "ray.executor.nonsense"])
def test_a_missing_module_is_named_as_it_was_imported(name):
    done = python("-c", f"import farandole.{name}")
    assert done.returncode == 1 and f"No module named 'farandole.{name}'" in done.stderr, done.stderr


def test_farandole_imports_no_integration():
    program = (
        "import sys, farandole; print(*[name for name in sys.modules if 'integrations' in name or '_moved' in name])"
    )
    assert output_of(program) == []


# ---- One direction ---------------------------------------------------------------------------------------------------


def imports_of(path):
    """The modules of the same package that a file imports, also in functions and by import_module('.name', ...)."""
    with open(path) as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module] if node.module else [name.name for name in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.args[0].value
            if getattr(node.func, "attr", "") == "import_module" and str(name).startswith("."):
                yield name[1:]


@pytest.mark.parametrize("kind", [*KINDS, "dask", "ranks", "spark"])
def test_no_module_imports_one_that_imports_it(kind):
    folder = os.path.join(HERE, kind)
    names = [file.removesuffix(".py") for file in os.listdir(folder) if file.endswith(".py")]
    graph = {name: set(imports_of(os.path.join(folder, name + ".py"))) & set(names) for name in names}
    order = []
    while len(order) < len(names):
        free = [name for name in names if name not in order and graph[name] <= set(order)]
        assert free, f"these import each other: {sorted(set(names) - set(order))}"
        order += free
