"""The standard output of Python's commands: `farandole kubernetes`, the program for locations, and horovodrun.

It is here because the package farandole-kubernetes has nothing else of farandole.
"""

import errno
import os
import sys

CANNOT_WRITE, NO_READER = 74, 141  # the codes of the program `farandole`
LOST = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Recorder:
    """Standard output that keeps its first error: argparse ignores those of its help text."""

    def __init__(self, stream):
        self._stream = stream
        self.error = None

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def _record(self, call, *arguments):
        try:
            return call(*arguments)
        except OSError as error:
            self.error = self.error or error
            raise

    def write(self, text):
        return self._record(self._stream.write, text)

    def flush(self):
        return self._record(self._stream.flush)


def guarded(name, run):
    """The exit code of the command `name`: that of `run()`, or of the SystemExit that it raises, once all is written.

    If standard output is closed, run() is not called. The code is then CANNOT_WRITE, as when it cannot be written, and
    standard error has one line. Of an output whose reader has ended, as `head` does, it is NO_READER.
    """
    if sys.stderr is None:  # closed; print() would write to standard output
        sys.stderr = open(os.devnull, "w")
    if sys.stdout is None:
        print(f"{name}: standard output is closed; redirect it to /dev/null", file=sys.stderr)
        return CANNOT_WRITE
    stream = sys.stdout
    recorder = sys.stdout = _Recorder(stream)
    try:
        code = _code_of(run)
        recorder.flush()
    except OSError as error:
        if error is not recorder.error or error.errno not in LOST:
            raise
    finally:
        sys.stdout = stream
    if recorder.error is None:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python writes the rest when it ends
    if recorder.error.errno == errno.EPIPE:
        return NO_READER
    print(f"{name}: standard output cannot be written: {recorder.error.strerror}", file=sys.stderr)
    return CANNOT_WRITE


def _code_of(run):
    try:
        return run() or 0
    except SystemExit as end:  # of argparse, which has printed help
        return end.code or 0
