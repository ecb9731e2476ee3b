"""A watch of objects of the API: a thread that lists them, follows their changes, and resumes after interruptions."""

import threading
import time

from .kubectl import ApiError, error_of, is_named, object_of, wrong_answer

WATCH_S = 300  # the server ends a watch after this time, and the next one goes on from the same version
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5


class _Expired(Exception):
    """The server no longer has the versions that follow the last one: the objects are to be listed again."""


class Watch:
    """Calls `report(objects)` with all current objects by name after each change, in a thread of its own, and
    `trouble(error)` when the connection is lost; `trouble(None)` follows when it is back.

    A broken connection is resumed from the last version. If the server answers 410 Gone, all objects are listed again.
    An error that would repeat, such as Forbidden, ends the watch; it is in `error` then. So does a failed login, unless
    the server has answered before: the network may be away.
    """

    def __init__(self, kubectl, path, report, trouble, **selector):
        self._kubectl, self._path, self._selector = kubectl, path, selector
        self._report, self._trouble = report, trouble
        self._objects, self._version, self._was_reached = {}, None, False
        self._process, self._lock, self._over = None, threading.Lock(), False
        self._pause = _FIRST_PAUSE_S  # before the next attempt; doubled until an event arrives
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def stop(self, timeout=5):
        """Ends the thread, after its present request at the latest; `timeout`: how long to wait for it."""
        with self._lock:
            self._over = True
            if self._process:
                self._process.kill()
        self._thread.join(timeout)

    def list_again(self):
        """The current objects by name, read now. ApiError if that fails."""
        items, answer = self._kubectl.get_items(
            self._path, are_right=lambda found: all(map(is_named, found)), **self._selector
        )
        self._version = answer["metadata"].get("resourceVersion")
        return {one["metadata"]["name"]: one for one in items}

    def _run(self):
        is_lost = False
        while not self._over:
            try:
                if self._version is None:
                    self._objects = self.list_again()
                    self._was_reached = True
                    self._report(dict(self._objects))
                elif is_lost:  # a watch may be silent for long, so that it does not show whether the server answers
                    self._kubectl.get(self._path, limit=1, **self._selector)
                if is_lost:
                    self._trouble(None)
                is_lost = False
                self._follow()
            except _Expired:
                self._version = None
            except ApiError as error:
                if self._over:
                    return
                if error.is_final or (error.reason == "NoCredentials" and not self._was_reached):
                    self.error = error
                    return self._trouble(error)
                if not is_lost:
                    self._trouble(error)
                is_lost = True
                time.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)

    def _follow(self):
        """Reads one watch until the server or the network ends it."""
        with self._lock:
            if self._over:
                return
            self._process = self._kubectl.stream(
                self._path,
                WATCH_S + 30,
                watch="1",
                allowWatchBookmarks="true",
                resourceVersion=self._version,
                timeoutSeconds=WATCH_S,
                **self._selector,
            )
        process = self._process
        try:
            count = 0
            for line in process.stdout:
                count += self._take(line)
        finally:
            process.kill()
            code, text = process.wait(), process.stderr.read()
            process.stdout.close()
            process.stderr.close()
        if code > 0:
            error = error_of(text)
            if error.reason == "Expired":
                raise _Expired
            raise error
        if not count:
            time.sleep(_FIRST_PAUSE_S)  # a server that ends every watch at once is not to be flooded

    def _take(self, line):
        """Applies one event. Returns 1 for an event that was understood."""
        if not line.strip():
            return 0
        event = object_of(line) or {}
        changed = event.get("object")
        if not isinstance(changed, dict):
            changed = {}
        if event.get("type") == "ERROR":
            if changed.get("code") == 410:
                raise _Expired
            raise ApiError(f"the watch of {self._path} failed: {changed.get('message')}", changed.get("reason", ""))
        version = changed["metadata"].get("resourceVersion") if isinstance(changed.get("metadata"), dict) else None
        is_bookmark = event.get("type") == "BOOKMARK"
        if version is None or not (is_bookmark or is_named(changed)):
            if line.endswith("\n"):
                raise wrong_answer(self._path, line)
            return 0  # the connection ended in the middle of a line: the event comes again
        self._version, self._pause = version, _FIRST_PAUSE_S
        if is_bookmark:
            return 1
        if event.get("type") == "DELETED":
            self._objects.pop(changed["metadata"]["name"], None)
        else:
            self._objects[changed["metadata"]["name"]] = changed
        self._report(dict(self._objects))
        return 1
