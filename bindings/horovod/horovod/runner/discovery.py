"""A host discovery script, run each second as Horovod does.

Its result is written to the file that `farandole run` reads.
"""

import contextlib
import ctypes
import errno
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from farandole import hosts

PAUSE_S = 1.0
LIMIT_S = 60.0  # of one call of the script
LIMIT_BYTES = 1 << 18  # of what one call prints
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REMEDIES = {
    errno.EACCES: "make it executable: chmod +x",
    errno.ENOEXEC: "begin it with a line that names its interpreter, such as #!/bin/sh",
    errno.ENOENT: "give its path, as ./discover.sh; if it exists, the interpreter in its first line does not",
}


class Call:
    """One call of the script. It has a session of its own, so that its end also reaches the programs that it waits for.

    HostsError if the script cannot be started.
    """

    def __init__(self, script):
        self._script = script
        self._must_end = False
        try:
            self._process = subprocess.Popen([script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
        except (OSError, ValueError) as error:
            remedy = _REMEDIES.get(getattr(error, "errno", None))
            raise hosts.HostsError(
                f"the host discovery script cannot be run: {error}{f'; {remedy}' if remedy else ''}"
            ) from None

    def end(self):
        """Makes slots() kill the script and raise HostsError. Threads and signal handlers may call it."""
        self._must_end = True

    def slots(self):
        """The number of ranks by the script's lines "host:slots". HostsError if it names other hosts or fails."""
        try:
            output, errors = self._read()
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.stdout.close()
            self._process.stderr.close()
        code = self._process.returncode
        if code != 0:
            ending = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
            raise hosts.HostsError(f"the host discovery script {self._script} {ending}: {hosts.shown(errors.strip())}")
        try:
            return hosts.local_slots(",".join(output.split())) if output.split() else 0
        except hosts.HostsError as error:
            raise hosts.HostsError(f"the host discovery script {self._script}: {error}", error.hosts) from None

    def _read(self):
        """What the script prints to its two streams. It ends with the script, though a child may keep them open."""
        deadline = time.monotonic() + LIMIT_S
        output = {self._process.stdout: b"", self._process.stderr: b""}
        with selectors.DefaultSelector() as selector:
            for stream in output:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while True:
                has_ended = self._process.poll() is not None  # what it has printed can be read now
                ready = selector.select(0 if has_ended else _POLL_S)
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    output[key.fileobj] += data
                    if not data:
                        selector.unregister(key.fileobj)
                if sum(map(len, output.values())) > LIMIT_BYTES:
                    raise hosts.HostsError(
                        f"the host discovery script {self._script} prints more than {LIMIT_BYTES >> 10} KiB; it must "
                        "print one line host:slots for each host, and end"
                    )
                if has_ended and not ready:
                    return (data.decode("utf-8", "backslashreplace") for data in output.values())
                if self._must_end:
                    raise hosts.HostsError(f"the host discovery script {self._script} was killed")
                if time.monotonic() > deadline:
                    raise hosts.HostsError(
                        f"the host discovery script {self._script} did not end within {LIMIT_S:g} s and was killed"
                    )


def discovered_slots(script):
    """The number of ranks that the script prints, before there is a job. HostsError as from Call.

    A signal ends the script and then this process.
    """
    received, calls = [], []

    def handle(number, _):
        received.append(number)
        for call in calls:
            call.end()

    with _signals(handle):
        try:
            calls.append(Call(script))
            if received:  # before there was a call
                calls[0].end()
            return calls[0].slots()
        finally:
            if received:
                sys.exit(128 + received[0])


class Follower:
    """A thread that calls the script each second and writes its changes to the file `path`."""

    def __init__(self, path, script, count):
        self._path, self._script, self._count = path, script, count
        self._lock = threading.Lock()
        self._stops = threading.Event()
        self._call = None
        self._last_words = None
        self._thread = threading.Thread(target=self._follow, name="host discovery", daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
        """Returns when the script and the thread have ended."""
        with self._lock:  # no call begins any more
            self._stops.set()
            if self._call is not None:
                self._call.end()
        self._thread.join()

    def _follow(self):
        while not self._stops.wait(PAUSE_S):
            try:
                self._update()
                self._last_words = None
            except (hosts.HostsError, OSError) as error:
                words = f"horovodrun: {error}; the number of ranks stays"
                if words != self._last_words and not self._stops.is_set():
                    with contextlib.suppress(OSError, ValueError):
                        print(words, file=sys.stderr, flush=True)
                self._last_words = words

    def _update(self):
        with self._lock:
            if self._stops.is_set():
                return
            self._call = Call(self._script)
        slots = self._call.slots()
        if slots != self._count and slots > 0:
            with open(f"{self._path}.new", "w") as file:
                file.write(str(slots))
            os.rename(f"{self._path}.new", self._path)
        self._count = slots


def follow(command, variables, script, count):
    """Runs `command`, which is `farandole run`, with as many ranks as the script prints, and returns its exit code.

    `count`: the number of ranks at the start. The script has ended when this function returns, and so has the job.
    """
    folder = tempfile.mkdtemp(prefix="horovodrun-")
    path = os.path.join(folder, "np")
    end_of_options = command.index("--")
    command = [*command[:end_of_options], "--np-file", path, *command[end_of_options:]]
    follower = Follower(path, script, count)
    try:
        process = subprocess.Popen(command, env=variables, preexec_fn=_end_with(os.getpid()))
        with _signals(lambda number, _: process.send_signal(number)):
            follower.start()
            try:
                code = process.wait()
            finally:
                follower.stop()
        return code if code >= 0 else 128 - code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end_with(parent):
    """A function for the child: it gets SIGTERM when this process ends without it, for example by SIGKILL."""
    prctl = ctypes.CDLL(None).prctl

    def bind():
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os._exit(128 + signal.SIGTERM)

    return bind


@contextlib.contextmanager
def _signals(handler):
    """Handles the signals that end a job by `handler` in this block, in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)
