"""farandole.checkpoint: checkpoints in a folder or in an object store. A reader finds a whole checkpoint or none.

    from farandole import checkpoint

    found = checkpoint.load("s3://bucket/run-7")
    if found:
        model.load_state_dict(torch.load(found.open("model.pt")))
        first = found.step
    ...
    checkpoint.save("s3://bucket/run-7", step, {"model.pt": lambda file: torch.save(model.state_dict(), file)})

A place is a path (file:// too) or a URI of fsspec: s3:// with s3fs, gs:// with gcsfs, and so on. These packages are
imported at their first use. They find their credentials themselves: on EKS those of the pod's service account.
"""

import hashlib
import io
import json
import logging
import os
import re
import secrets
import socket

from . import core, elastic_client, errors, objects, stores

__all__ = ["Checkpoint", "CheckpointError", "load", "read", "save", "write"]

_log = logging.getLogger("farandole")
_MANIFEST = "manifest.json"
_FOLDER = re.compile(r"(\d{12})-[0-9a-f]{8}")


class CheckpointError(errors.Error):
    """The store failed, or its content is not a checkpoint. The text names the rank, the place and the remedy."""

    code = "RESOURCE"

    def __reduce__(self):
        return (CheckpointError, self.fields())


class Checkpoint:
    """A checkpoint: `step`, and `parts`, a dict of names and bytes."""

    def __init__(self, step, parts):
        self.step, self.parts = step, parts

    def open(self, name):
        """A part as a binary file, for torch.load and np.load. KeyError if there is no such part."""
        return io.BytesIO(self.parts[name])


# ---- Whole checkpoints of all ranks ----------------------------------------------------------------------------------


def save(where, step, parts, keep=2, together=True):
    """Rank 0 saves `parts` as the checkpoint of a step; all ranks must call it.

    `parts`: {name: bytes, or a function that writes into a file}. Only those of rank 0 are used.
    `keep`: the number of checkpoints that stay.
    `together`: False means that no rank waits for rank 0, and that rank 0 alone raises a failure. Callbacks of on_leave
    use it, because other ranks may have exited.

    The manifest is written last, so that a reader gets the previous checkpoint until this one is complete.
    CheckpointError on all ranks if the save fails.
    """
    trouble = None
    if core.last_rank() == 0:
        try:
            _save(where, step, parts, keep)
        except CheckpointError as error:
            trouble = error
    if together and _size() > 1:
        trouble = objects.broadcast_object(trouble, 0, "farandole.checkpoint.save", core.world_group())
    if trouble:
        raise trouble


def load(where, names=None, together=None):
    """Returns the newest complete Checkpoint, or None if there is none; all ranks must call it.

    Rank 0 chooses the checkpoint, and every rank reads it: all parts, or only those in `names`. CheckpointError on all
    ranks if one fails. With together=False each rank chooses by itself. That is the default in an elastic job, where
    ranks join while others train; `state.sync()` then distributes rank 0's state.
    """
    if together is None:
        together = not elastic_client.is_elastic()
    if not together or _size() == 1:
        newest = _newest(where)
        return newest and _fetch(where, newest, names)
    newest = _first_trouble(lambda: _newest(where) if core.last_rank() == 0 else None)
    newest = objects.broadcast_object(newest, 0, "farandole.checkpoint.newest", core.world_group())
    return newest and _first_trouble(lambda: _fetch(where, newest, names))


def _first_trouble(work):
    """The result of `work` on this rank if it fails on no rank; else all ranks raise the failure of the first one."""
    trouble = result = None
    try:
        result = work()
    except CheckpointError as error:
        trouble = error
    for one in objects.allgather_object(trouble, "farandole.checkpoint.load", core.world_group()):
        if one:
            raise one
    return result


# ---- One file or object, by one rank ---------------------------------------------------------------------------------


def write(where, data):
    """Writes bytes as one file or object, atomically.

    It is for one rank and does not communicate. CheckpointError if it fails.
    """
    place, name = _split(where)
    with _Doing("write", where):
        stores.at(place).write(name, data)


def read(where):
    """The bytes of a file or object, or None if it does not exist. CheckpointError if the store fails."""
    place, name = _split(where)
    with _Doing("read", where):
        return stores.at(place).read(name)


def _split(where):
    where = os.fspath(where)
    place, slash, name = where.rpartition("/")
    return (place if slash else ".") or "/", name


# ---- The layout of a checkpoint --------------------------------------------------------------------------------------
#
#   run-7/000000000040-1c7e02f9/model.pt         one folder for each attempt, with a unique name
#   run-7/000000000040-1c7e02f9/optimizer.pt
#   run-7/000000000040-1c7e02f9/manifest.json    written last: lengths and hashes of the parts


class _Hashing(io.RawIOBase):
    """A file that counts and hashes the bytes that are written into it."""

    def __init__(self, file):
        self._file, self._hash, self.bytes = file, hashlib.sha256(), 0

    def writable(self):
        return True

    def write(self, data):
        data = memoryview(data).cast("B")
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)
        return len(data)

    def facts(self):
        return {"bytes": self.bytes, "sha256": self._hash.hexdigest()}


def _save(where, step, parts, keep):
    folder = f"{step:012d}-{secrets.token_hex(4)}"
    with _Doing("save to", f"{where}/{folder}"):
        store = stores.at(where)
        facts = {}
        for name, part in parts.items():
            if "/" in name or name == _MANIFEST:
                raise ValueError(f"a part must not be named '{name}'")
            with store.stream(f"{folder}/{name}") as file:
                measured = _Hashing(file)
                part(measured) if callable(part) else measured.write(part)
            facts[name] = measured.facts()
        store.write(f"{folder}/{_MANIFEST}", json.dumps({"format": 1, "step": step, "parts": facts}).encode())
    try:
        _forget(store, keep)
    except Exception as error:  # the new checkpoint is saved
        _log.warning("checkpoints before the newest %d in %s could not be removed: %s", keep, where, error)


def _folders(store):
    return sorted(filter(_FOLDER.fullmatch, store.entries()), reverse=True)


def _manifest(store, folder):
    """The manifest of a checkpoint; None if its save was not completed."""
    data = store.read(f"{folder}/{_MANIFEST}")
    try:
        return data and json.loads(data)
    except ValueError:
        return None  # of a store with a put that is not atomic


def _forget(store, keep):
    kept = 0
    for folder in _folders(store):
        if kept < keep:
            kept += _manifest(store, folder) is not None
            continue
        if _manifest(store, folder) is not None:
            store.remove(f"{folder}/{_MANIFEST}")  # first: a partly removed checkpoint must not look complete
        store.remove(folder)


def _newest(where):
    """(folder, manifest) of the newest complete checkpoint, or None."""
    with _Doing("look into", where):
        store = stores.at(where)
        for folder in _folders(store):
            manifest = _manifest(store, folder)
            if manifest is not None:
                return folder, manifest
            _log.warning("%s/%s was not saved completely and is skipped", where, folder)
    return None


def _fetch(where, newest, names):
    folder, manifest = newest
    parts = {}
    for name in manifest["parts"] if names is None else names:
        with _Doing("read", f"{where}/{folder}/{name}"):
            wanted = manifest["parts"].get(name)
            if wanted is None:
                raise _Damage(f"the checkpoint has no such part, only {', '.join(manifest['parts'])}")
            data = stores.at(where).read(f"{folder}/{name}")
            if data is None or len(data) != wanted["bytes"] or hashlib.sha256(data).hexdigest() != wanted["sha256"]:
                raise _Damage(
                    "it differs from what was saved; remove this folder to begin from the checkpoint before it"
                )
            parts[name] = data
    return Checkpoint(manifest["step"], parts)


class _Damage(Exception):
    """A damaged checkpoint. The store works, and the text contains the remedy."""


class _Doing:
    """A context that completes every failure of a store with the rank, the action, the place and the remedy."""

    def __init__(self, what, where):
        self.what, self.where = what, where

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if not isinstance(error, Exception) or isinstance(error, CheckpointError):
            return
        reason = str(error) or type(error).__name__
        if not isinstance(error, _Damage):
            reason = f"{type(error).__name__}: {reason}; {stores.remedy(self.where, error)}"
        host = core.info()["host"] if core.is_initialized() else socket.gethostname()
        text = f"checkpoint: rank {core.last_rank()} ({host}) could not {self.what} {self.where}: {reason}"
        raise CheckpointError(text, core.last_rank(), host, phase=f"checkpoint: {self.what}") from error


def _size():
    return core.size() if core.is_initialized() else 1
