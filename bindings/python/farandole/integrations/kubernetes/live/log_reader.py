"""The log of one container: a thread that follows it to its end, and resumes a broken connection without a gap."""

import re
import subprocess
import threading

from .kubectl import ApiError, error_of

STREAM_S = 600  # each connection is opened again after this time, so that one that hangs is noticed
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5  # before the log is asked for again, and after several errors
_END_S = 5  # for kubectl to end after its output
GONE = float("inf")  # as the number of restarts: another pod has this name, and the log is deleted
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ?")


class LogReader:
    """Calls `line(text)` for each line of one container's log, in order and once, and `lost()` if the pod and its log
    are deleted while a broken connection is not yet resumed. `error`: why the log could not be read the last time; None
    if it was.

    The server adds a time to each line. A resumed stream begins with the second of the last line: lines that were
    read before are recognized by their time and, where several have the same time, by their number. `has_ended()`
    returns whether the container has ended, `restarts()` how often it has been started again since this one began, or
    GONE. `is_same()` asks the server whether the pod of this name is still the same one; an ApiError if it is away.
    `unreadable(error)` is called for an error with which the reader gives up.
    """

    def __init__(
        self,
        kubectl,
        pod,
        container,
        line,
        lost,
        has_ended,
        restarts,
        is_same,
        tail=None,
        unreadable=lambda error: None,
    ):
        self._kubectl, self._path = kubectl, f"{kubectl.path('pods')}/{pod}/log"
        self.pod, self._container, self._tail = pod, container, tail
        self._line, self._lost, self._has_ended, self._restarts = line, lost, has_ended, restarts
        self._is_same, self._unreadable = is_same, unreadable
        self._last, self._with_last = "", 0  # the time of the last line, and how many lines had it
        self._process, self._over = None, threading.Event()
        self.error = None
        self._is_broken = False  # the last connection ended before the log did
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def join(self, timeout):
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self, timeout=5):
        """Ends the thread, after its present request at the latest; `timeout`: how long to wait for it."""
        self._over.set()
        if self._process:
            self._process.kill()
        self._thread.join(timeout)

    def _run(self):
        pause = _PAUSE_S
        while not self._over.is_set():
            # Asked before reading: what a container wrote before its end is in a log that is read after it.
            had_ended = self._has_ended()
            try:
                if had_ended:
                    self._read_rest()
                    break
                if self._process and not self._is_same():  # the watch has not shown it yet
                    break
                self._follow()
                self.error = None
            except ApiError as error:
                if error.reason == "NotFound" and 'pods "' in str(error):
                    self.error = None
                    break  # the pod is gone, and its log with it
                self.error = error
                if error.reason in ("NotFound", "Forbidden"):  # of the pod's node, or of the right to read logs
                    self._unreadable(error)
                    break
            pause = _PAUSE_S if self.error is None else min(2 * pause, _LONGEST_PAUSE_S)
            if self.error or not self._has_ended():
                self._over.wait(pause)
        if self._is_broken and not self.error and not self._over.is_set():
            self._lost()

    def _query(self):
        # A second earlier than the last line: times are whole seconds there, and lines may arrive out of order by less.
        since = _STAMP.match(self._last).group(1) + "Z" if self._last else None
        tail = self._tail if not self._last else None
        return {"container": self._container, "timestamps": "true", "sinceTime": since, "tailLines": tail}

    def _read_rest(self):
        previous = "true" if self._restarts() == 1 else None
        if self._restarts() > 1:
            return  # the server keeps one earlier log only
        lines = self._kubectl.text(self._path, previous=previous, **self._query()).splitlines()
        self.error = None
        if self._is_another():  # what the last stream had not read is deleted
            self._is_broken = self._is_broken or self._process is None
            return
        self._take(lines)
        self._is_broken = False

    def _is_another(self):
        """Whether what was read may be the log of a successor of the same name."""
        try:
            return not self._is_same()
        except ApiError as error:
            if error.reason != "NotFound":
                raise
            return False

    def _follow(self):
        self._process = process = self._kubectl.stream(self._path, STREAM_S, follow="true", **self._query())
        try:
            self._take(line.rstrip("\n") for line in process.stdout if line.endswith("\n"))
            self._note_end(process)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

    def _note_end(self, process):
        """A log that has ended closes its connection without an error. A request that was refused tells nothing."""
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return
        error = error_of(process.stderr.read()) if code else None
        if error is None or not error.is_final:
            self._is_broken = code != 0
        if error and error.reason:  # an answer of the server, and no broken connection
            raise error

    def _take(self, lines):
        last, count = self._last, self._with_last
        for line in lines:
            found = _STAMP.match(line)
            stamp = found.group(0).strip() if found else ""
            text = line[found.end() :] if found else line
            if stamp and stamp == last and count > 0:
                count -= 1
                continue
            if stamp and _order(stamp) < _order(last):
                continue
            self._with_last = self._with_last + 1 if stamp == self._last else 1
            self._last = stamp or self._last
            self._line(text)


def _order(stamp):
    """A key that orders times of one server, whose fractions have different lengths."""
    found = _STAMP.match(stamp)
    return (found.group(1), (found.group(2) or ".0").ljust(10, "0")) if found else ("", "")
