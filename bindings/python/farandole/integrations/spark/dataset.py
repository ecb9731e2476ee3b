"""Datasets of estimators: a DataFrame as Parquet files, and the rows of one rank as batches of NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .store import Store, file_system

_SPLIT = "farandole_validation"  # the column by which rows are divided


@dataclass(frozen=True)
class Prepared:
    """Where the rows are. `validation` is None without validation rows."""

    train: str
    validation: str | None
    train_rows: int
    validation_rows: int


def with_arrays(frame, columns: Sequence[str]):
    """The DataFrame with vectors of pyspark.ml in `columns` as arrays. ValueError if a column has another type."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import types

    numbers = (types.NumericType, types.BooleanType)
    for name in columns:
        if name not in frame.columns:
            raise ValueError(f"the DataFrame has no column '{name}'; it has {', '.join(frame.columns)}")
        kind = frame.schema[name].dataType
        if kind.typeName() == "udt" or kind.simpleString() == "vector":
            frame = frame.withColumn(name, vector_to_array(name, "float32"))
        elif not isinstance(kind, numbers) and not (
            isinstance(kind, types.ArrayType) and isinstance(kind.elementType, numbers)
        ):
            raise ValueError(
                f"column '{name}' is {kind.simpleString()}: columns must be numbers, arrays of numbers or vectors"
            )
    return frame


def prepare(frame, columns: Sequence[str], validation: float | str | None, store: Store, run_id: str,
            seed: int) -> Prepared:  # fmt: skip
    """Writes `columns` of the DataFrame into the store, divided into training and validation rows.

    `validation`: the fraction of rows, or a column that is true or above 0 in these rows. ValueError if no rows are
    left to train with, or if a value is missing.
    """
    from pyspark.sql import functions

    chosen = list(dict.fromkeys(columns))
    marks = functions.lit(False)
    if isinstance(validation, str):
        if validation not in frame.columns:
            raise ValueError(f"validation='{validation}': the DataFrame has no such column")
        marks = functions.col(validation).cast("double") > 0
    elif validation:
        if not 0 < float(validation) < 1:
            raise ValueError(f"validation={validation}: give a fraction between 0 and 1, or the name of a column")
        marks = functions.rand(seed) < float(validation)
    # One pass: a DataFrame that is computed twice may differ.
    rows = with_arrays(frame.withColumn(_SPLIT, marks), chosen).select(*chosen, _SPLIT)
    base = store.get_train_data_path(run_id)
    rows.write.mode("overwrite").partitionBy(_SPLIT).parquet(base)
    train, held_out = f"{base}/{_SPLIT}=false", f"{base}/{_SPLIT}=true"
    counts = [sum(piece.rows for piece in pieces_of(path)) for path in (train, held_out)]
    if counts[0] == 0:
        raise ValueError("the DataFrame has no rows to train with")
    return Prepared(train, held_out if counts[1] else None, *counts)


@dataclass(frozen=True)
class Piece:
    """Some rows of a row group of a Parquet file."""

    path: str
    group: int
    start: int
    rows: int


def pieces_of(uri: str) -> list[Piece]:
    """The row groups of all Parquet files of a folder, in the order of their names. Empty without such a folder."""
    from pyarrow import fs, parquet

    system, folder = file_system(uri)
    try:
        files = system.get_file_info(fs.FileSelector(folder))
    except FileNotFoundError:
        return []
    pieces = []
    for path in sorted(one.path for one in files if one.path.endswith(".parquet")):
        with system.open_input_file(path) as file:
            metadata = parquet.read_metadata(file)
        pieces += [
            Piece(path, group, 0, metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)
        ]
    return [one for one in pieces if one.rows]


def shard(pieces: Sequence[Piece], rank: int, size: int) -> list[Piece]:
    """The pieces of one rank: as many rows on each rank, so that all ranks make as many steps.

    If the rows cannot be divided equally, the last ranks get some of the first rows too.
    """
    total = sum(one.rows for one in pieces)
    each = math.ceil(total / size)
    return [piece for start, stop in _spans(rank * each, each, total) for piece in _cut(pieces, start, stop)]


def _spans(first: int, count: int, total: int) -> Iterator[tuple[int, int]]:
    """Rows first to first + count, counted on from 0 after the last one, as (start, stop)."""
    while count > 0:
        start = first % total
        stop = min(start + count, total)
        yield start, stop
        first, count = first + stop - start, count - (stop - start)


def _cut(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    at = 0
    for one in pieces:
        low, high = max(start, at), min(stop, at + one.rows)
        if low < high:
            yield Piece(one.path, one.group, one.start + low - at, high - low)
        at += one.rows


class Shard:
    """The rows of one rank. At most two row groups are in memory at a time."""

    def __init__(self, uri: str, columns: Sequence[str], rank: int, size: int):
        self._uri, self._columns = uri, list(dict.fromkeys(columns))
        self._system, _ = file_system(uri)
        self._pieces = shard(pieces_of(uri), rank, size)
        self._widths: dict[str, tuple] = {}
        self.rows = sum(one.rows for one in self._pieces)

    def steps(self, batch: int) -> int:
        """The number of batches of one pass, which is the same on all ranks."""
        return math.ceil(self.rows / batch)

    def batches(self, batch: int, seed: int | None) -> Iterator[dict[str, Any]]:
        """One pass over the rows: arrays by column, of `batch` rows; the last batch may be smaller.

        `seed`: shuffles the row groups, and the rows of each; None keeps the order.
        """
        import numpy

        dice = None if seed is None else numpy.random.default_rng(seed)
        order = range(len(self._pieces)) if dice is None else dice.permutation(len(self._pieces))
        left: dict[str, Any] = {}
        for index in order:
            table = self._read(self._pieces[index])
            count = len(table[self._columns[0]])
            if dice is not None:
                mixed = dice.permutation(count)
                table = {name: column[mixed] for name, column in table.items()}
            if left:
                table = {name: numpy.concatenate([left[name], column]) for name, column in table.items()}
                count = len(table[self._columns[0]])
            whole = count - count % batch
            for start in range(0, whole, batch):
                yield {name: column[start : start + batch] for name, column in table.items()}
            left = {name: column[whole:] for name, column in table.items()} if whole < count else {}
        if left:
            yield left

    def _read(self, piece: Piece) -> dict[str, Any]:
        from pyarrow import parquet

        with self._system.open_input_file(piece.path) as file:
            group = parquet.ParquetFile(file).read_row_group(piece.group, columns=self._columns)
        rows = group.slice(piece.start, piece.rows)
        arrays = {name: as_array(name, rows.column(name)) for name in self._columns}
        for name, array in arrays.items():
            width = self._widths.setdefault(name, array.shape[1:])
            if width != array.shape[1:]:
                raise _ragged(name, width[0], array.shape[1])
        return arrays


def as_array(name: str, column) -> Any:
    """A column of PyArrow as an array: float32 for numbers with a fraction, int64 for integers, bool for booleans.

    Arrays become rows of a matrix. ValueError if a value is missing or arrays differ in length.
    """
    import numpy
    import pyarrow

    values = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(values, pyarrow.ChunkedArray):  # several chunks of lists stay apart
        values = pyarrow.concat_arrays(values.chunks)
    if values.null_count:
        raise ValueError(f"column '{name}' has {values.null_count} missing values: remove or fill them")
    if pyarrow.types.is_list(values.type) or pyarrow.types.is_large_list(values.type):
        lengths = numpy.unique(values.value_lengths().to_numpy())
        if len(lengths) > 1:
            raise _ragged(name, *lengths)
        inside = values.flatten()
        if inside.null_count:
            raise ValueError(f"column '{name}' has {inside.null_count} missing elements: remove or fill them")
        return _narrow(inside).reshape(len(values), -1)
    return _narrow(values)


def _ragged(name: str, *lengths: int) -> ValueError:
    return ValueError(f"column '{name}' has arrays of {min(lengths)} to {max(lengths)} elements: give them one length")


def _narrow(values) -> Any:
    import numpy
    import pyarrow

    if pyarrow.types.is_decimal(values.type):
        values = values.cast(pyarrow.float64())
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind == "f":
        return array.astype(numpy.float32)
    return array.astype(numpy.int64) if array.dtype.kind in "iu" else array


def inputs_of(batch: Mapping[str, Any], columns: Sequence[str], shapes: Sequence[Sequence[int]] | None) -> list[Any]:
    """The arrays of `columns`, each in its shape. A shape contains -1 for the rows."""
    if shapes is None:
        return [batch[name] for name in columns]
    return [batch[name].reshape([-1, *(one for one in shape if one != -1)]) for name, shape in zip(columns, shapes)]
