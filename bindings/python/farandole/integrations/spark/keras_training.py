"""train(): what each rank of a KerasEstimator runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from ... import core, objects
from .dataset import Shard, inputs_of
from .keras_models import loaded, saved


def train(task: dict) -> dict | None:
    """Trains the model of the task. Rank 0 returns the weights, the history and the sizes of the outputs."""
    import keras

    import farandole.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(task["random_seed"])
    model, history = _begin(task, hvd)
    optimizer = keras.optimizers.deserialize(task["optimizer"])
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer, compression=task["gradient_compression"] or hvd.Compression.none,
                                           backward_passes_per_step=task["backward_passes_per_step"]),
        loss=task["loss"], metrics=task["metrics"], loss_weights=task["loss_weights"], jit_compile=False)  # fmt: skip
    columns = [*task["features"], *task["labels"]]
    data = Shard(task["data"].train, columns, hvd.rank(), hvd.size())
    held_out = task["data"].validation and Shard(task["data"].validation, columns, hvd.rank(), hvd.size())
    steps = task["train_steps_per_epoch"] or data.steps(task["batch_size"])
    more = {}
    if held_out:
        more = {"validation_data": _batches(task, held_out, task["val_batch_size"], None),
                "validation_steps": task["validation_steps_per_epoch"]
                or held_out.steps(task["val_batch_size"])}  # fmt: skip
    seed = [task["random_seed"], hvd.rank()] if task["shuffle"] else None
    epochs = _Epochs(keras, history, task, model, hvd.rank() == 0)
    model.fit(
        _batches(task, data, task["batch_size"], seed, len(history)), steps_per_epoch=steps,
        initial_epoch=len(history), epochs=task["epochs"], verbose=task["verbose"] if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
                   *(task["callbacks"] or []), epochs.callback], **more)  # fmt: skip
    if hvd.rank() != 0:
        return None
    sizes = [_size(one.shape) for one in model.outputs]
    return {"weights": model.get_weights(), "history": epochs.history, "output_sizes": sizes}


def _begin(task: dict, hvd) -> tuple[Any, list[dict]]:
    """The model and the history of the run: those of its checkpoint, or new ones. The same on all ranks."""
    found = task["store"].read(task["checkpoint"]) if hvd.rank() == 0 else None
    found = objects.broadcast_object(found, 0, "farandole.estimator.checkpoint", core.world_group())
    if found is None:
        return loaded(task["model"], task["custom_objects"]), []
    head, _, data = found.partition(b"\n")
    return loaded(data, task["custom_objects"]), json.loads(head)


class _Epochs:
    """Records each epoch, and saves a checkpoint on rank 0."""

    def __init__(self, keras, history: list[dict], task: dict, model, saves: bool):
        self.history = list(history)
        self.callback = keras.callbacks.LambdaCallback(on_epoch_end=self._end)
        self._task, self._model, self._saves = task, model, saves

    def _end(self, epoch: int, logs: dict | None) -> None:
        entry: dict[str, Any] = {"epoch": epoch, "train": {}}
        for name, value in (logs or {}).items():
            kind = "validation" if name.startswith("val_") else "train"
            entry.setdefault(kind, {})[name[4:] if kind == "validation" else name] = float(value)
        self.history.append(entry)
        if self._saves:
            head = json.dumps(self.history).encode()
            self._task["store"].write(self._task["checkpoint"], head + b"\n" + saved(self._model))


def _batches(task: dict, data: Shard, batch: int, seed: list[int] | None, epoch: int = 0) -> Iterator[tuple]:
    """Batches without an end: (inputs, labels), each an array, or a tuple of several."""
    for number in itertools.count(epoch):
        for rows in data.batches(batch, None if seed is None else [*seed, number]):
            if task["transformation_fn"] is not None:
                rows = task["transformation_fn"](rows)
            inputs = inputs_of(rows, task["features"], task["input_shapes"])
            labels = [rows[name] for name in task["labels"]]
            yield tuple(one[0] if len(one) == 1 else tuple(one) for one in (inputs, labels))


def _size(shape) -> int:
    size = 1
    for one in shape[1:]:
        size *= one or 1
    return size
