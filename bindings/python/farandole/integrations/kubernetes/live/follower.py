"""Follows one job: joins new pods, prints their logs and states, and ends with the outcome of the object above them."""

import queue
import sys
import time

from ..names import INSTANCE
from . import outcome, pod_state
from .kubectl import ApiError
from .log_reader import GONE, LogReader
from .outcome import CODES, COMPLETE, FAILED, RUNNING, SUSPENDED
from .watching import Watch

NO_SUCH_JOB = 66
_DRAIN_S = 30  # after the end of the job, for the last lines of its pods
_UNREADABLE_S = 5  # the same, for logs whose nodes do not answer
_LOOK_AGAIN_S = 5  # for the object of a job, and for the events of pods that wait


def note(text):
    print(f"farandole kubernetes: {text}", file=sys.stderr, flush=True)


def _waits(name, reason):
    return f"{name} waits: {reason}"


def reason_of(kubectl, pod):
    """(word, reason) of a pod's state; the reason of a waiting pod may be in its events only."""
    word, reason = pod_state.state(pod)
    if reason is None:
        selector = f"involvedObject.name={pod['metadata']['name']}"
        try:
            events, _ = kubectl.get_items(kubectl.path("events"), fieldSelector=selector)
        except ApiError as error:
            return word, f"its events cannot be read: {error}"
        warnings = [event for event in events if event.get("type") == "Warning"]
        reason = warnings[-1].get("message", "") if warnings else "its container is being made"
    return word, reason


def lines_of_table(follower):
    pods = pod_state.newest(follower.pods.values())
    rows = [("rank", "pod", "node", "state", "why")]
    for pod in pods:
        name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "-")
        rows.append((pod_state.short_name(pod), name, node, *reason_of(follower.kubectl, pod)))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    for row in rows:
        yield "  ".join(word.ljust(width) for word, width in zip(row, widths)) + ("  " + row[4] if row[4] else "")


def print_logs(follower):
    """The present logs, one pod after the other."""
    for pod in pod_state.newest(follower.pods.values()):
        if not pod_state.has_started(pod):
            continue
        path = f"{follower.kubectl.path('pods')}/{pod['metadata']['name']}/log"
        query = {"container": pod_state.container_with_log(pod), "tailLines": follower.o.tail}
        try:
            text = follower.kubectl.text(path, **query)
        except ApiError as error:  # such as that its node does not answer: the other logs are readable
            note(f"the log of {pod['metadata']['name']} cannot be read: {error}")
            continue
        for line in text.splitlines():
            print(f"{pod_state.short_name(pod)}| {pod_state.line_of_ranks(pod, line)}", flush=True)


class Follower:
    """One job's pods by name, those that are gone too, and the object that controls them.

    Watches and readers run in threads and put functions into one queue. The thread that calls follow() runs them, and
    it alone changes the state; readers look at `pods` and `_present` only."""

    def __init__(self, kubectl, o):
        self.kubectl, self.o = kubectl, o
        self.pods, self._present = {}, set()
        self.kind, self.controller, self._path = None, None, None
        self._was_deleted, self._has_no_object = False, False
        self._by_index = {}  # the name of the newest pod
        self._messages, self._readers, self._watches = queue.Queue(), {}, []
        self._printed = set()
        self._away = set()  # the paths of watches without a connection
        self._away_since, self._idle_since = None, time.monotonic()
        self._was_reached = False
        self._ends = None  # the time of --limit

    # ---- One look ----

    def look_once(self):
        """Reads the job once. Returns its exit code."""
        self._find()
        self._take_pods(Watch(self.kubectl, self.kubectl.path("pods"), None, None, **self._selector()).list_again())
        return self._code()

    def is_missing(self):
        return not self.pods and self.controller is None

    def _selector(self):
        return {"labelSelector": f"{INSTANCE}={self.o.name}"}

    def _find(self):
        if self._path is None and (found := outcome.find(self.kubectl, self.o.name)):
            self._path, self.controller = found
            self.kind = self.controller.get("kind")
        self._has_no_object = self._path is None

    # ---- Following ----

    def follow(self):
        """Until the job has ended, --limit has passed, or nothing has run for --timeout. Returns the exit code."""
        ends = self._ends = None if self.o.limit is None else time.monotonic() + self.o.limit
        self._watch(self.kubectl.path("pods"), self._take_pods, **self._selector())
        looks_at = 0.0
        try:
            while self._outcome()[0] not in (COMPLETE, FAILED):
                now = time.monotonic()
                if ends is not None and now > ends:
                    if not self._was_reached:
                        raise ApiError(f"the API server has not answered within {self.o.limit:g} s (--limit)")
                    return self._give_up(f"{self.o.limit:g} s have passed (--limit)")
                if self._away_since is not None:  # what pods do is unknown
                    if now - self._away_since > self.o.timeout:
                        raise ApiError(f"the API server has not answered for {self.o.timeout:g} s (--timeout)")
                elif self._idle_since is not None and now - self._idle_since > self.o.timeout:
                    return self._give_up(f"no pod has run for {self.o.timeout:g} s (--timeout)")
                self._raise_final_errors()
                if now >= looks_at:
                    looks_at = now + _LOOK_AGAIN_S
                    self._look_for_controller()
                    self._explain_waiting()
                self._handle_one(0.2)
            self._drain()
        finally:
            threads = [*self._watches, *self._readers.values()]
            for one in threads:
                one.stop(0)
            self.kubectl.end_requests()
            for one in threads:
                one.stop()
        return self._end()

    def _watch(self, path, report, **selector):
        self._watches.append(
            Watch(
                self.kubectl,
                path,
                lambda objects: self._messages.put(lambda: report(objects)),
                lambda error: self._messages.put(lambda: self._connection(path, error)),
                **selector,
            )
        )
        self._watches[-1].start()

    def _handle_one(self, timeout):
        try:
            self._messages.get(timeout=timeout)()
        except queue.Empty:
            return False
        return True

    def _raise_final_errors(self):
        for one in self._watches:
            if one.error:
                raise one.error

    def _connection(self, path, error):
        """Says once that watches have lost their connection, and once that all have it again."""
        if error is None:
            self._away.discard(path)
            if not self._away:
                self._away_since = None
                note("the connection is back")
            return
        if any(one.error is error for one in self._watches):
            return  # _raise_final_errors() ends the command with it
        self._away.add(path)
        if self._away_since is not None:
            return
        self._away_since = time.monotonic()
        what = "the connection is lost, and is made again" if self._was_reached else "the API server is not reached yet"
        note(f"{what}: {error}")

    def _look_for_controller(self):
        if self._path or self._away_since is not None:
            return
        try:
            self._find()
        except ApiError as error:
            if error.is_of_all_requests or (error.reason == "NoCredentials" and not self._was_reached):
                raise
            if self._was_reached:  # otherwise the watch of pods says that the server is not reached
                self._once(str(error))
            return
        if self._path:
            self.note_outcome()
            self._watch(self._path, self._take_controller, fieldSelector=f"metadata.name={self.o.name}")
        elif not self.pods:
            self._once(f"there is no job '{self.o.name}' yet")

    def _take_controller(self, objects):
        before = self._outcome()
        self._was_deleted = self.controller is not None and self.o.name not in objects
        self.controller = objects.get(self.o.name, self.controller)
        self.note_outcome(before)

    def note_outcome(self, before=(RUNNING, "")):
        """Says how the job ended, or that it is suspended, unless it was in that state before."""
        state, why = self._outcome()
        if (state, why) != before and state != RUNNING:
            note(f"{self.kind or 'job'} {self.o.name} is {state}{': ' + why if why else ''}")

    def _take_pods(self, objects):
        self._was_reached = True
        for name, pod in sorted(objects.items(), key=lambda one: one[1]["metadata"].get("creationTimestamp", "")):
            self._announce(self.pods.get(name), pod)
            self.pods[name] = pod
        self._present = set(objects)
        runs = any(pod_state.state(pod)[0] in ("running", "ending") for pod in objects.values())
        self._idle_since = None if runs else self._idle_since or time.monotonic()
        if self.o.follows and self.o.shows_logs:
            for pod in objects.values():
                self._read(pod)

    def _announce(self, before, pod):
        """Says which pod takes the place of which, and, without logs, each change."""
        name, index = pod["metadata"]["name"], pod_state.index_of(pod)
        if before is None and self.o.follows and (old := self._by_index.get(index)):
            note(f"{name} takes the place of {old}")
        if before is not None and self.o.follows and pod_state.uid(before) != pod_state.uid(pod):
            note(f"a new {name} takes the place of the old one")
        self._by_index[index] = name
        if self.o.follows and not self.o.shows_logs:
            word, reason = pod_state.state(pod)
            if before is None or pod_state.state(before)[0] != word:
                self._printed.add(_waits(name, reason))
                print(f"{pod_state.short_name(pod)}| {name} {word}{': ' + reason if reason else ''}", flush=True)

    def _explain_waiting(self):
        if self._away_since is not None:
            return
        for name in sorted(self._present):
            if pod_state.state(self.pods[name])[0] != "waiting":
                continue
            self._once(_waits(name, reason_of(self.kubectl, self.pods[name])[1]))

    def _once(self, text):
        if text not in self._printed:
            note(text)
        self._printed.add(text)

    # ---- Logs ----

    def _read(self, pod):
        """Begins to read the log of a container that has started, once for each of its starts."""
        name, count = pod["metadata"]["name"], pod_state.restarts(pod)
        uid = pod_state.uid(pod)
        if not pod_state.has_started(pod) or (uid, count) in self._readers:
            return
        if count and "waiting" in pod_state.state(pod)[0]:
            return  # it will be started again: the last log is being read already
        short = pod_state.short_name(pod)

        def restarted():
            now = self.pods[name]
            return GONE if pod_state.uid(now) != uid else pod_state.restarts(now) - count

        def has_ended():
            now = self.pods[name]
            return restarted() > 0 or name not in self._present or pod_state.log_has_ended(now)

        def show(line):
            print(f"{short}| {pod_state.line_of_ranks(pod, line)}", flush=True)

        def is_same():
            try:
                return pod_state.uid(self.kubectl.get_named(f"{self.kubectl.path('pods')}/{name}")) == uid
            except ApiError as error:
                if error.reason != "Forbidden":  # a role may allow lists and watches alone; then the watch tells
                    raise
                return True

        reader = LogReader(
            self.kubectl,
            name,
            pod_state.container_with_log(pod),
            lambda line: self._messages.put(lambda: show(line)),
            lambda: self._messages.put(lambda: self._lines_are_lost(name, short)),
            has_ended,
            restarted,
            is_same,
            self.o.tail,
            lambda error: self._messages.put(lambda: self._once(f"the log of {name} cannot be read: {error}")),
        )
        self._readers[(uid, count)] = reader
        reader.start()

    def _lines_are_lost(self, name, short):
        note(f"{name} was deleted while its log could not be read: lines of {short} are missing here")

    def _drain(self):
        """The last lines: pods are listed once more, because a watch may be behind, and their logs read to the end."""
        ends = time.monotonic() + _DRAIN_S
        if self._ends is not None:
            ends = min(ends, max(self._ends, time.monotonic() + 1))
        try:
            self._take_pods(Watch(self.kubectl, self.kubectl.path("pods"), None, None, **self._selector()).list_again())
        except ApiError as error:
            self._once(f"the pods could not be listed at the end: {error}")
        is_unreadable_at = time.monotonic() + _UNREADABLE_S
        while time.monotonic() < ends:
            away = time.monotonic() > is_unreadable_at
            if not self._handle_one(0.05) and all(
                one.join(0) or (away and one.error and one.error.reason == "InternalError")
                for one in self._readers.values()
            ):
                break
        while self._handle_one(0):
            pass
        for one in self._readers.values():
            if one.error and not one.join(0):
                note(f"the log of {one.pod} cannot be read to its end: {one.error}")
        open_ones = sum(not one.join(0) and not one.error for one in self._readers.values())
        if open_ones:
            note(f"{open_ones} pods still write {_DRAIN_S} s after the end of the job; the rest is not shown")

    # ---- The end ----

    def _outcome(self):
        if self.controller is not None and not self._was_deleted:
            return outcome.of(self.controller)
        # Without its object, such as after --ttl, the pods alone tell.
        alone = self._was_deleted or self._has_no_object
        code = pod_state.job_code(self.pods.values()) if alone else None
        if code is None:
            return (FAILED, "it was deleted") if self._was_deleted and not self._present else (RUNNING, "")
        return (FAILED if code else COMPLETE), "" if self.controller is None else "its object was deleted"

    def _code(self):
        if self.is_missing():
            return NO_SUCH_JOB
        state = self._outcome()[0]
        if state != FAILED:
            return CODES[state]
        failed = pod_state.failures(self.pods.values())
        code = pod_state.exit_code(failed[0]) if failed else CODES[FAILED]
        return CODES[FAILED] if code in (CODES[RUNNING], CODES[SUSPENDED], NO_SUCH_JOB) else code

    def _end(self):
        # Without logs their ends are among the changes, and in the table.
        for pod in pod_state.failures(self.pods.values()) if self.o.shows_logs else ():
            note(f"{pod['metadata']['name']} {': '.join(filter(None, pod_state.state(pod)))}")
        return self._code()

    def _give_up(self, why):
        self._explain_waiting()
        what = f"there is no job '{self.o.name}'" if self.is_missing() else f"the job is {self._outcome()[0]}"
        note(f"{why}: {what}")
        return self._code()
