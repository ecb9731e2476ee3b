"""The numbers that Python passes to the C API are those of its header, and only the header contains them."""

import ast
import inspect
import os
import re

import farandole
import numpy as np
import torch
from farandole import _native, arrays, codes, objects
from farandole.torch import tensors
from farandole.torch.distributed import operands
from launch import ROOT

HEADER = os.path.join(ROOT, "include", "farandole", "farandole.h")
PREFIXES = {
    "dtype": "FDL_",
    "reduce_op": "FDL_",
    "collective": "FDL_",
    "kind": "FDL_NAMED_",
    "device_kind": "FDL_DEVICE_",
    "compression": "FDL_COMPRESSION_",
}


def enumerators(name):
    """{name without prefix: number} of an enumeration of the header."""
    with open(HEADER) as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    (body,) = re.findall(rf"typedef enum fdl_{name} \{{(.*?)\}}", text, re.S)
    found = {one: int(number) for one, number in re.findall(r"(\w+) = (\d+)", body)}
    assert found and all(one.startswith(PREFIXES[name]) for one in found), body
    return {one.removeprefix(PREFIXES[name]): number for one, number in found.items()}


def test_the_native_module_exports_every_enumerator_of_the_header():
    assert _native.codes() == {name: enumerators(name) for name in PREFIXES}


def test_the_enumerations_are_those_of_the_header():
    operators = enumerators("reduce_op")
    del operators["USER"]
    expected = {codes.Op: operators, codes.Kind: enumerators("kind"), codes.Collective: enumerators("collective")}
    for enumeration, numbers in expected.items():
        assert {one.name: one.value for one in enumeration} == numbers
        assert enumeration.__doc__ and enumeration.__module__ == "farandole.codes"
    assert {"CPU": codes.DEVICE_CPU, "CUDA": codes.DEVICE_CUDA} == enumerators("device_kind")
    assert farandole.SUM is codes.Op.SUM is farandole.Op(operators["SUM"])


def test_dtypes_are_found_by_name():
    names = {number: name.lower() for name, number in enumerators("dtype").items()}
    names[enumerators("dtype")["FLOAT8_E4M3"]] = "float8_e4m3fn"
    assert codes.DTYPE_NAMES == names and codes.UINT8 == enumerators("dtype")["UINT8"]
    assert tensors.DTYPES == {getattr(torch, name): number for number, name in names.items()}
    for number, name in names.items():
        if not name.startswith(("bfloat", "float8")):
            assert arrays.numpy_dtype(number) == np.dtype(name)
            assert _native.memory_of(np.empty(1, name), False)[1] == number
            assert torch.empty(0, dtype=getattr(torch, name)).element_size() == np.dtype(name).itemsize


def test_reductions_of_torch_distributed_have_the_same_numbers():
    operators = enumerators("reduce_op")
    names = {"AVG": "AVERAGE", "BAND": "BIT_AND", "BOR": "BIT_OR", "BXOR": "BIT_XOR"}
    assert {operands._CORE_OPS[name] for name in names} == {operators[one] for one in names.values()}
    assert (
        operands._LOGICAL_OPS["SUM"] == operators["LOGICAL_OR"]
        and operands._LOGICAL_OPS["MIN"] == operators["LOGICAL_AND"]
    )


def test_no_number_is_written_in_python():
    for module in (codes, tensors, objects):
        literals = [
            node
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) is int
        ]
        assert not literals, ast.unparse(literals[0])
    assert not [node for node in ast.walk(ast.parse(inspect.getsource(codes)))
                if isinstance(node, ast.Constant) and type(node.value) is int]  # fmt: skip
