"""Checks custom resources against the CEL rules that an API server evaluates in addition to schemas."""

import copy
import functools
import json
import re

import pytest
from manifest_checks import SCHEMAS, need_schemas, read
from test_manifests import SHIPPED, filled, name_of

CUSTOM = [
    path
    for path in SHIPPED
    if any(
        "." in document["apiVersion"].partition("/")[0]
        and not document["apiVersion"].startswith(("networking.k8s.io", "rbac.", "storage."))
        for document in read(path)
        if "apiVersion" in document
    )
]


@functools.cache
def schema_of(api, kind):
    group, _, version = api.rpartition("/")
    file = SCHEMAS / f"{kind}.{group}.{version}.json"
    return json.loads(file.read_text()) if file.is_file() else None


def with_defaults(value, schema):
    """Fills in defaults, as the API server does before it evaluates the rules."""
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                value[name] = with_defaults(value[name], inner)
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for name in value:
                value[name] = with_defaults(value[name], more)
    elif isinstance(value, list):
        value[:] = [with_defaults(entry, schema.get("items", {})) for entry in value]
    return value


def evaluate(rule, value):
    """Whether a rule holds; an evaluation that fails refuses the object, as on the server."""
    import cel

    context = cel.Context()
    context.add_variable("self", value)
    context.add_function("find", lambda text, pattern: found.group() if (found := re.search(pattern, text)) else "")
    context.add_function("split", lambda text, at: text.split(at))
    return cel.evaluate(rule, context)


def broken_rules(value, schema, path=""):
    """Yields (path, rule) for each rule that does not hold, and (path, None) for each that does."""
    for validation in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in validation["rule"]:
            continue  # a rule about changes
        try:
            held = evaluate(validation["rule"], value)
        except Exception as error:
            held, validation = False, {"rule": f"{validation['rule']}: {error}"}
        yield path, None if held is True else validation["rule"]
    if isinstance(value, dict):
        more = schema.get("additionalProperties")
        for name, entry in value.items():
            inner = schema.get("properties", {}).get(name) or (more if isinstance(more, dict) else None)
            if inner:
                yield from broken_rules(entry, inner, f"{path}.{name}")
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from broken_rules(entry, schema.get("items", {}), f"{path}[{number}]")


def check(document):
    """Returns (number of evaluated rules, those that do not hold)."""
    schema = schema_of(document["apiVersion"], document["kind"])
    results = list(broken_rules(with_defaults(document, schema), schema)) if schema else []
    return len(results), [f"{path}: {rule}" for path, rule in results if rule]


def test_every_custom_resource_that_is_shipped_keeps_the_rules_of_its_kind():
    need_schemas()
    looked, broken = {}, []
    for path in CUSTOM:
        for document in filled(path):
            count, faults = check(document)
            looked[document["kind"]] = looked.get(document["kind"], 0) + count
            broken += [f"{name_of(path)}: {fault}" for fault in faults]
    print(f"rules looked at: {looked}")
    assert broken == []
    assert min(looked[kind] for kind in ("NodePool", "EC2NodeClass", "TrainJob", "TrainingRuntime")) > 2


@pytest.mark.parametrize(
    "name, change, rule",
    [
        ("ec2nodeclass-efa", lambda spec: spec.update(instanceProfile="x"), "instanceProfile"),
        ("ec2nodeclass-efa", lambda spec: spec.update(amiFamily="Bottlerocket"), "amiFamily"),
        (
            "nodepool-gpu-od",
            lambda spec: spec["disruption"]["budgets"].append({"nodes": "1", "schedule": "@daily"}),
            "schedule",
        ),
    ],
)
def test_c7_a_rule_that_is_broken_is_found(name, change, rule):
    need_schemas()
    (path,) = [path for path in CUSTOM if path.stem == name]
    (document,) = filled(path)
    change(document["spec"])
    assert any(rule in fault for fault in check(document)[1])


def test_a_rule_that_cannot_be_evaluated_refuses_the_object():
    schema = {"x-kubernetes-validations": [{"rule": "self.nothing > 1"}]}
    assert [rule is not None for _, rule in broken_rules({"a": 1}, schema)] == [True]
