"""Stores: where checkpoints are kept: a folder of a file system, or whatever fsspec knows by its URI (s3://, gs://).

In both a name has its old bytes until all of its new ones are there: in a folder by renaming, in an object store
because its put is whole by nature. `stream` is for what nobody reads before something else names it.
"""

import contextlib
import errno
import os
import re
import shutil
import socket

_EXTRA = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# Of these "no such object" may mean "no such bucket": what lists no more than one object of a bucket.
_ONE_OF_BUCKET = {"gs": {"max_results": 1}, "gcs": {"max_results": 1}}


def at(where):
    """The store at a path or a URI. It is not touched yet."""
    where = os.fspath(where)
    if where.startswith("file://"):
        return Folder(where[len("file://") :])
    return Objects(where) if scheme_of(where) else Folder(where)


def scheme_of(where):
    found = re.match(r"([a-z][a-z0-9+.-]*)(?:://|::)", where, re.I)
    return found[1].lower() if found else ""


class Folder:
    def __init__(self, path):
        self.path = os.path.abspath(path)

    def write(self, name, data):
        target = self._make_room(name)
        # Of this process alone, also where pods share the folder and each is process 1 of its own.
        temporary = f"{target}.{socket.gethostname()}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            file.write(data)
            _to_disk(file)
        os.replace(temporary, target)
        _sync_folder(os.path.dirname(target))

    @contextlib.contextmanager
    def stream(self, name):
        target = self._make_room(name)
        with open(target, "wb") as file:
            yield file
            _to_disk(file)
        _sync_folder(os.path.dirname(target))

    def _make_room(self, name):
        target = os.path.join(self.path, name)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            _sync_folder(os.path.dirname(folder))
        return target

    def read(self, name):
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def entries(self):
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def remove(self, name):
        place = os.path.join(self.path, name)
        shutil.rmtree(place) if os.path.isdir(place) else os.unlink(place)


class Objects:
    def __init__(self, uri):
        import fsspec

        self.files, path = fsspec.core.url_to_fs(uri)
        self.path = path.rstrip("/")
        self.one_of_bucket = _ONE_OF_BUCKET.get(scheme_of(uri))

    def write(self, name, data):
        self.files.pipe_file(self._of(name), bytes(data))

    def stream(self, name):
        return self.files.open(self._of(name), "wb")

    def read(self, name):
        try:
            return self.files.cat_file(self._of(name))
        except FileNotFoundError as error:
            self._demand_nothing_else(error)
            return None

    def entries(self):
        self.files.invalidate_cache()  # fsspec remembers what was there
        try:
            return [one.rstrip("/").rsplit("/", 1)[-1] for one in self.files.ls(self.path, detail=False)]
        except FileNotFoundError as error:
            self._demand_nothing_else(error)
            return []

    def remove(self, name):
        place = self._of(name)
        # Not rm(recursive=True): that takes brackets and asterisks in a name as a pattern.
        for one in self.files.find(place) or [place]:
            self.files.rm_file(one)
        with contextlib.suppress(Exception):  # most have no folders that could be left
            self.files.rmdir(place)

    def _demand_nothing_else(self, error):
        """An object that is not there is a beginning. Else something is missing without which nothing can be known (the
        bucket, or the file of the pod's token: then the error has its name), which is told before hours of training."""
        if error.filename is not None or ("bucket" in str(error).lower() and "exist" in str(error).lower()):
            raise error
        if self.one_of_bucket is not None:
            bucket = self.path.split("/")[0]
            try:
                self.files.ls(bucket, detail=False, **self.one_of_bucket)
            except FileNotFoundError:
                raise FileNotFoundError(f"the bucket {bucket} does not exist") from error

    def _of(self, name):
        return f"{self.path}/{name}" if self.path else name


def _to_disk(file):
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path):
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remedy(where, error):
    """What to do about a failure of the store at `where`."""
    scheme = scheme_of(os.fspath(where))
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    if "ImportError" in kinds:
        extra = _EXTRA.get(scheme)
        return f'pip install "farandole[{extra}]"' if extra else f"install fsspec, and what it wants for {scheme}://"
    if scheme and "ValueError" in kinds and "rotocol not known" in str(error):
        return f"fsspec knows no {scheme}://; give a path, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "DefaultCredentialsError"}:
        return (
            "no credentials were found: give the pod's service account a role (AWS_ROLE_ARN and "
            "AWS_WEB_IDENTITY_TOKEN_FILE are in the pod then)"
        )
    if "PermissionError" in kinds:
        return (
            "the role of the pod's service account may not do this there: allow it to list, get, put and delete objects"
            if scheme
            else "let this user write there (fsGroup, the volume's owner)"
        )
    if scheme and getattr(error, "filename", None):
        return "its credentials point there: is the token of the pod's service account mounted?"
    if "FileNotFoundError" in kinds:
        return "make the bucket, or mend its name" if scheme else "mount the volume, or mend the path"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "make room, or keep fewer checkpoints"
    if scheme and kinds & {
        "ConnectionError",
        "TimeoutError",
        "HTTPClientError",
        "ClientError",
        "EndpointConnectionError",
    }:
        return (
            "the store does not answer as it should: may pods reach it (--allow-egress of a NetworkPolicy, a VPC "
            "endpoint), and is AWS_ENDPOINT_URL right where it is set?"
        )
    return "the traceback of that rank says more"


def _chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
