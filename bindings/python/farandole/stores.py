"""Stores for checkpoints: a folder of a file system, or a URI of fsspec (s3://, gs://).

In both a name keeps its old bytes until all new ones are stored: a folder renames a file, an object store's put is
atomic. `stream` has no such guarantee; its files are found only through a name that is written later.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import stat

_EXTRA = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# For these schemes "no such object" may mean "no such bucket". The options list at most one object of a bucket.
_ONE_OF_BUCKET = {"gs": {"max_results": 1}, "gcs": {"max_results": 1}}


def at(where):
    """The store at a path or a URI. Does not access it yet."""
    where = os.fspath(where)
    if where.startswith("file://"):
        return Folder(where[len("file://") :])
    return Objects(where) if scheme_of(where) else Folder(where)


def scheme_of(where):
    found = re.match(r"([a-z][a-z0-9+.-]*)(?:://|::)", where, re.I)
    return found[1].lower() if found else ""


class Folder:
    """A folder of a file system."""

    def __init__(self, path):
        self.path = os.path.abspath(path)

    def write(self, name, data):
        with self._named_if_denied():
            target = self._make_room(name)
            # Unique to this process, also if pods share the folder and each of them is process 1.
            temporary = f"{target}.{socket.gethostname()}.{os.getpid()}.tmp"
            with open(temporary, "wb") as file:
                file.write(data)
                _to_disk(file)
            os.replace(temporary, target)
            _sync_folder(os.path.dirname(target))

    @contextlib.contextmanager
    def stream(self, name):
        with self._named_if_denied():
            target = self._make_room(name)
            file = open(target, "wb")
        with file:
            yield file
            _to_disk(file)
        _sync_folder(os.path.dirname(target))

    @contextlib.contextmanager
    def _named_if_denied(self):
        """PermissionError with the user of this process and the owner of the folder, such as of a volume in a pod."""
        try:
            yield
        except PermissionError as error:
            place = self.path
            while not os.path.isdir(place):
                place = os.path.dirname(place)
            status = os.stat(place)
            raise PermissionError(
                error.errno,
                f"this process has the user {os.geteuid()} and may not write to the folder, which belongs to the user "
                f"{status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}; give that user a folder of its own",
                place,
            ) from error

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
    """A prefix of an object store, through fsspec."""

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
        self.files.invalidate_cache()  # fsspec caches listings
        try:
            return [one.rstrip("/").rsplit("/", 1)[-1] for one in self.files.ls(self.path, detail=False)]
        except FileNotFoundError as error:
            self._demand_nothing_else(error)
            return []

    def remove(self, name):
        place = self._of(name)
        # Not rm(recursive=True), which interprets brackets and asterisks in a name as a pattern.
        for one in self.files.find(place) or [place]:
            self.files.rm_file(one)
        with contextlib.suppress(Exception):  # most object stores have no folders
            self.files.rmdir(place)

    def _demand_nothing_else(self, error):
        """Raises if a missing object is an error: the bucket, or the file of the pod's token (then `error` has its
        name), is missing.

        A missing object by itself means that there is no checkpoint yet. The check fails before hours of training.
        """
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
    """The remedy for a failure of the store at `where`, as text."""
    scheme = scheme_of(os.fspath(where))
    kinds = {kind.__name__ for one in _chain(error) for kind in type(one).__mro__}
    if "ImportError" in kinds:
        extra = _EXTRA.get(scheme)
        return (
            f'pip install "farandole[{extra}]"'
            if extra
            else f"install fsspec and the package that it needs for {scheme}://"
        )
    if scheme and "ValueError" in kinds and "rotocol not known" in str(error):
        return f"fsspec does not support {scheme}://; give a path, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
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
        return "its credentials refer to that file: check that the token of the pod's service account is mounted"
    if "FileNotFoundError" in kinds:
        return "create the bucket, or correct its name" if scheme else "mount the volume, or correct the path"
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, or keep fewer checkpoints"
    if scheme and kinds & {
        "ConnectionError",
        "TimeoutError",
        "HTTPClientError",
        "ClientError",
        "EndpointConnectionError",
    }:
        return (
            "the store does not respond correctly: check that pods can reach it (--allow-egress of a NetworkPolicy, a "
            "VPC endpoint) and that AWS_ENDPOINT_URL, if set, is right"
        )
    return "see the traceback of that rank"


def _chain(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
