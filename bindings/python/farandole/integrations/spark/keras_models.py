"""Keras models as bytes, and back."""

from __future__ import annotations

import os
import tempfile
from typing import Any


def saved(model) -> bytes:
    """The bytes of a model in Keras' own format."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def loaded(data: bytes, custom_objects: dict | None):
    """The model of saved()."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(data)
        return keras.models.load_model(path, custom_objects=custom_objects, compile=False)


_models: dict[bytes, Any] = {}  # of this worker: a Python UDF is called for each batch


def loaded_here(data: bytes, custom_objects: dict | None):
    """As loaded(), once for each model in a process."""
    if data not in _models:
        _models.clear()
        _models[data] = loaded(data, custom_objects)
    return _models[data]
