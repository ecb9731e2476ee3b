"""Store: the folder of an estimator, for its training data and its checkpoints, on any file system of PyArrow."""

from __future__ import annotations

import contextlib
import os

from ..needed import import_needed

_USER, _PACKAGE = "farandole.spark.Store", "farandole[spark]"


class Store:
    """A folder that the driver and all executors reach: a shared path, hdfs://, s3:// (or s3a://), gs://, abfs://.

    The training data of a run is in <prefix>/intermediate_train_data.<run id>, its validation data in
    intermediate_val_data.<run id>, and its last checkpoint in <prefix>/runs/<run id>/checkpoint.
    """

    @staticmethod
    def create(prefix_path: str, *_, **__) -> Store:
        """The store at a path or URI. Further arguments are accepted and ignored."""
        return Store(prefix_path)

    def __init__(self, prefix_path: str, *_, **__):
        path = os.fspath(prefix_path)
        self.prefix_path = path.rstrip("/") if "://" in path else "file://" + os.path.abspath(path)

    def get_train_data_path(self, idx: str | None = None) -> str:
        return self._path("intermediate_train_data", idx)

    def get_val_data_path(self, idx: str | None = None) -> str:
        return self._path("intermediate_val_data", idx)

    def get_runs_path(self) -> str:
        return f"{self.prefix_path}/runs"

    def get_run_path(self, run_id: str) -> str:
        return f"{self.get_runs_path()}/{run_id}"

    def get_checkpoint_path(self, run_id: str) -> str:
        return f"{self.get_run_path(run_id)}/checkpoint"

    def get_logs_path(self, run_id: str) -> str:
        return f"{self.get_run_path(run_id)}/logs"

    def _path(self, name: str, idx: str | None) -> str:
        return f"{self.prefix_path}/{name}" + (f".{idx}" if idx is not None else "")

    def exists(self, path: str) -> bool:
        filesystem, inside = file_system(path)
        return str(filesystem.get_file_info(inside).type) != "FileType.NotFound"

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        filesystem, inside = file_system(path)
        try:
            with filesystem.open_input_file(inside) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Replaces a file. Its old bytes stay until the new ones are complete."""
        filesystem, inside = file_system(path)
        filesystem.create_dir(inside.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(inside + ".part") as file:
            file.write(data)
        filesystem.move(inside + ".part", inside)

    def remove(self, path: str) -> None:
        """Removes a folder with what it contains; does nothing if there is none."""
        filesystem, inside = file_system(path)
        with contextlib.suppress(FileNotFoundError):
            filesystem.delete_dir(inside)


LocalStore = HDFSStore = Store  # the names of programs written for Horovod


def file_system(uri: str):
    """(file system, path in it) of PyArrow. s3a:// is Spark's name for s3://."""
    fs = import_needed(_USER, "pyarrow.fs", "PyArrow", _PACKAGE)
    return fs.FileSystem.from_uri("s3://" + uri[len("s3a://") :] if uri.startswith("s3a://") else uri)
