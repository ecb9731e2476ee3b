"""Reads manifests, looks up their ConfigMaps and Secrets, and expands variables."""

import base64
import json
import os
import re

import yaml


def read(manifest):
    """Documents of a manifest: text, a path, a document, or a list of any of them; Lists are taken apart."""
    if isinstance(manifest, dict):
        return manifest["items"] if manifest.get("kind") == "List" else [json.loads(json.dumps(manifest))]
    if isinstance(manifest, (list, tuple)):
        return [one for part in manifest for one in read(part)]
    if isinstance(manifest, os.PathLike) or "\n" not in manifest:
        with open(manifest) as file:
            manifest = file.read()
    return [one for document in yaml.safe_load_all(manifest) if document for one in read(document)]


def data_of(documents, kind, name, namespace):
    """The data of the ConfigMap or Secret of that name, or None."""
    for one in documents:
        meta = one["metadata"]
        if one["kind"] == kind and meta["name"] == name and meta.get("namespace", "default") == namespace:
            if kind == "Secret":
                data = {key: base64.b64decode(value).decode() for key, value in one.get("data", {}).items()}
                return {**data, **one.get("stringData", {})}
            return one.get("data", {})
    return None


def expand(text, env):
    """Replaces $(NAME) as Kubernetes does; $$ becomes one $."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)",
        # fmt: skip
        lambda found: "$" if found.group(0) == "$$" else env.get(found.group(1), found.group(0)),
        text,
    )
