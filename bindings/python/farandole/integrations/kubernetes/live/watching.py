"""A watch of objects of the API: a thread that lists them, follows their changes, and resumes after interruptions."""

import json
import threading
import time

from .kubectl import ApiError, error_of

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
        self.error = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
        with self._lock:
            self._over = True
            if self._process:
                self._process.kill()
        self._thread.join(timeout=5)

    def list_again(self):
        """The current objects by name, read now. ApiError if that fails."""
        answer = self._kubectl.get(self._path, **self._selector)
        self._version = answer["metadata"].get("resourceVersion")
        return {one["metadata"]["name"]: one for one in answer["items"]}

    def _run(self):
        pause, is_lost = _FIRST_PAUSE_S, False
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
                pause, is_lost = _FIRST_PAUSE_S, False
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
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

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
        try:
            event = json.loads(line)
        except ValueError:
            return 0  # the connection ended in the middle of a line: the event comes again
        changed = event.get("object", {})
        if event.get("type") == "ERROR":
            if changed.get("code") == 410:
                raise _Expired
            raise ApiError(f"the watch of {self._path} failed: {changed.get('message')}", changed.get("reason", ""))
        self._version = changed["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return 1
        if event["type"] == "DELETED":
            self._objects.pop(changed["metadata"]["name"], None)
        else:
            self._objects[changed["metadata"]["name"]] = changed
        self._report(dict(self._objects))
        return 1
