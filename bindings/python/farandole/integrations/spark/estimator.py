"""The base of estimators and their models: parameters with Horovod's names, as members of a Spark ML pipeline."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..needed import import_needed
from .dataset import prepare, with_arrays
from .store import Store

import_needed("farandole.spark: an estimator", "pyspark.ml", "PySpark", "farandole[spark]")
from pyspark.ml import Estimator, Model  # noqa: E402

COMMON = dict(
    num_proc=None, model=None, store=None, optimizer=None, loss=None, metrics=None, feature_cols=None, label_cols=None,
    validation=None, batch_size=32, val_batch_size=None, epochs=1, shuffle=True, random_seed=0, verbose=1, run_id=None,
    train_steps_per_epoch=None, validation_steps_per_epoch=None, transformation_fn=None, output_cols=None,
    gradient_compression=None, backward_passes_per_step=1, start_timeout=None, env=None, keep_data=False)  # fmt: skip


class Parameters:
    """Named parameters: attributes, and Horovod's getBatchSize() and setBatchSize(value) for each."""

    NAMES: dict[str, Any] = {}

    def __init__(self, **given: Any):
        super().__init__()
        unknown = [name for name in given if name not in self.NAMES]
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no parameter {unknown[0]}; it has {', '.join(sorted(self.NAMES))}"
            )
        for name, default in self.NAMES.items():
            setattr(self, name, given.get(name, default))

    def __getattr__(self, word: str) -> Any:
        name = "".join(f"_{one.lower()}" if one.isupper() else one for one in word[3:]).lstrip("_")
        if word[:3] in ("get", "set") and name in self.NAMES:
            return (lambda: getattr(self, name)) if word[:3] == "get" else lambda value: self._set_one(name, value)
        raise AttributeError(f"{type(self).__name__} has no attribute {word}")

    def _set_one(self, name: str, value: Any) -> Any:
        setattr(self, name, value)
        return self

    def copy(self, extra: Any = None) -> Any:
        """A copy, as pipelines make it."""
        return type(self)(**{name: getattr(self, name) for name in self.NAMES})


class BaseEstimator(Parameters, Estimator):
    """fit(DataFrame) writes the rows into the store, trains on `num_proc` ranks, and returns a model."""

    NEEDED = ("model", "store", "loss", "optimizer", "feature_cols", "label_cols")
    VARIABLES: dict[str, str] = {}  # of the ranks

    def _fit(self, dataset):
        from .run import run

        for name in self.NEEDED:
            if getattr(self, name) is None:
                raise ValueError(f"{type(self).__name__}: the parameter {name} is missing")
        store = self.store if isinstance(self.store, Store) else Store.create(self.store)
        features, labels = as_list(self.feature_cols), as_list(self.label_cols)
        run_id = self.run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
        data_id = f"{run_id}-{secrets.token_hex(4)}"  # a run that continues has other rows
        try:
            prepared = prepare(dataset, [*features, *labels], self.validation, store, data_id, self.random_seed)
            results = run(self._training(), (self._task(store, run_id, prepared, features, labels),),
                          num_proc=self.num_proc, start_timeout=self.start_timeout,
                          env={**self.VARIABLES, **(self.env or {})})  # fmt: skip
        finally:
            if not self.keep_data:
                store.remove(store.get_train_data_path(data_id))
        return self._model_of(results[0], run_id, features, labels)

    def _training(self) -> Callable[[dict], dict]:
        """The function that each rank calls with the task. Rank 0's result is that of the training."""
        raise NotImplementedError

    def _task(self, store, run_id, prepared, features, labels) -> dict:
        """What the ranks need; pickled as one object, so that the optimizer refers to the model's parameters."""
        names = ("loss", "metrics", "batch_size", "epochs", "shuffle", "random_seed", "verbose",
                 "train_steps_per_epoch", "validation_steps_per_epoch", "transformation_fn", "gradient_compression",
                 "backward_passes_per_step")  # fmt: skip
        return dict({name: getattr(self, name) for name in names}, data=prepared, store=store, features=features,
                    labels=labels, checkpoint=store.get_checkpoint_path(run_id),
                    val_batch_size=self.val_batch_size or self.batch_size)  # fmt: skip

    def _model_of(self, trained: dict, run_id: str, features: list[str], labels: list[str]):
        raise NotImplementedError


class BaseModel(Parameters, Model):
    """transform(DataFrame) adds a column for each output: a number, or an array of numbers."""

    NAMES: dict[str, Any] = dict(model=None, feature_columns=None, label_columns=None, output_cols=None, run_id=None,
                                 history=None, output_sizes=None, input_shapes=None, batch_size=1024)  # fmt: skip

    def outputs(self) -> list[str]:
        return as_list(self.output_cols) or [f"{name}__output" for name in as_list(self.label_columns)]

    def _predictor(self) -> Callable[[list], list]:
        """A function that can be pickled: lists of input arrays to lists of output arrays."""
        raise NotImplementedError

    def _transform(self, dataset):
        from pyspark.sql import functions, types

        names, features = self.outputs(), as_list(self.feature_columns)
        sizes = self.output_sizes or [None] * len(names)
        kinds = [types.FloatType() if size == 1 else types.ArrayType(types.FloatType()) for size in sizes]
        schema = types.StructType([types.StructField(f"o{at}", kind) for at, kind in enumerate(kinds)])
        taken = with_arrays(dataset.select(*features), features).schema
        predict = functions.pandas_udf(_prediction(self._predictor(), features, self.input_shapes, sizes), schema)
        added = "farandole_outputs"
        ready = dataset.select(functions.struct("*").alias("row"), *_array_columns(dataset, taken, features))
        done = ready.withColumn(added, predict(functions.struct(*[functions.col(f"f{at}")
                                                                   for at in range(len(features))])))  # fmt: skip
        return done.select("row.*", *[functions.col(f"{added}.o{at}").alias(name) for at, name in enumerate(names)])


def _array_columns(dataset, taken, features: Sequence[str]) -> list:
    """The feature columns under the names f0, f1..., vectors as arrays."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions

    columns = []
    for at, name in enumerate(features):
        same = dataset.schema[name].dataType == taken[name].dataType
        column = functions.col(name) if same else vector_to_array(functions.col(name), "float32")
        columns.append(column.alias(f"f{at}"))
    return columns


def _prediction(predictor: Callable, features: Sequence[str], shapes, sizes) -> Callable:
    """The function of a pandas UDF: a frame of features to a frame of outputs."""

    def work(frame):
        import pandas
        import pyarrow

        from farandole.integrations.spark.dataset import as_array, inputs_of

        columns = {name: as_array(name, pyarrow.array(frame[f"f{at}"], from_pandas=True))
                   for at, name in enumerate(features)}  # fmt: skip
        outputs = predictor(inputs_of(columns, features, shapes))
        ready = {}
        for at, (size, output) in enumerate(zip(sizes, outputs)):
            flat = output.reshape(len(frame), -1)
            ready[f"o{at}"] = flat[:, 0] if size == 1 else [row.tolist() for row in flat]
        return pandas.DataFrame(ready)

    import pandas

    work.__annotations__ = {"frame": pandas.DataFrame, "return": pandas.DataFrame}
    return work


def as_list(value: Any) -> list:
    return [] if value is None else [value] if isinstance(value, str) else list(value)
