"""One rank of farandole.run: `python -m farandole.run_rank FOLDER` runs that folder's task and stores its outcome."""

import os
import pickle
import sys
import time
import traceback

from . import core, objects


def _rank():
    return core.rank() if core.is_initialized() else int(os.environ.get("FARANDOLE_RANK", "0"))


def _leave(folder, outcome):
    """Stores the outcome atomically: it is written under another name and renamed."""
    aside = os.path.join(folder, f"part.{os.getpid()}")
    with objects.private_file(aside) as file:
        file.write(outcome)
    os.rename(aside, os.path.join(folder, f"outcome.{os.getpid()}"))


def _read_folder(folder):
    if os.stat(folder).st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user: its content is not unpickled")
    with open(os.path.join(folder, "task"), "rb") as file:
        return read_task(file)


def _failed(error):
    raised_at = time.monotonic_ns()  # the same clock in all processes of the host
    facts = {
        "rank": _rank(),
        "process": os.getpid(),
        "raised_at": raised_at,
        "summary": "".join(traceback.format_exception_only(type(error), error)).strip(),
        "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
    }
    try:
        data = objects.dumps(dict(facts, error=error))
        pickle.loads(data)  # pickling may succeed where unpickling fails: a constructor with other arguments
        return data
    except Exception:
        return objects.dumps(dict(facts, error=None))


def read_task(file):
    """The call (function, args, kwargs) that `file` holds after the list of folders to import from."""
    path = pickle.load(file)  # first: unpickling the task may need it
    sys.path += [entry for entry in path if entry not in sys.path]
    return pickle.load(file)


def perform(read, store):
    """Calls what `read()` returns as (function, args, kwargs), and `store(outcome)` with its result or its exception.

    The outcome is bytes: a pickled dictionary. An exception of the call is raised again.
    """
    try:
        function, args, kwargs = read()
        value = function(*args, **kwargs)
        facts = {"rank": _rank(), "process": os.getpid()}
        try:
            outcome = objects.dumps(dict(facts, value=value))
        except Exception as error:
            raise TypeError(f"the result of rank {_rank()} cannot be pickled: {error}") from error
    except BaseException as error:
        store(_failed(error))
        raise
    store(outcome)


def main():
    """Runs the task of the folder sys.argv[1] and stores its outcome there."""
    folder = sys.argv[1]
    perform(lambda: _read_folder(folder), lambda outcome: _leave(folder, outcome))


if __name__ == "__main__":
    main()
