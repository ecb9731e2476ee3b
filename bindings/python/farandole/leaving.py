"""Leaving: what a rank does when it is told to end (SIGTERM: its pod is evicted, its job is cancelled).

    farandole.on_leave(lambda seconds: save("/checkpoints/state.npz"))

It goes on to its next leave point, calls back there, and ends with 143. Leave points are `state.commit()` and
`state.check_host_updates()` of elastic programs, and `farandole.leave_if_told()` in all others.
"""

import logging
import os
import signal
import threading
import time

_log = logging.getLogger("farandole")
EXIT_TOLD = 128 + signal.SIGTERM

_callbacks = []
_until = None  # monotonic time at which the launcher ends this process
_listening = False


def on_leave(callback):
    """Has `callback(seconds)` called in the main thread at the next leave point after SIGTERM; then this process ends
    with
    143. `seconds`: how long the launcher waits yet (FARANDOLE_TERM_GRACE_S from the signal on). Callbacks are called in
    the order in which they were given. Other ranks need not be there any more: no collectives in them."""
    if not callable(callback):
        raise TypeError(f"on_leave takes a function, not {callback!r}")
    _callbacks.append(callback)
    if not listen():
        _log.warning("on_leave: the program has a handler of its own for SIGTERM, which stays")
    return callback


def leave_if_told():
    """A leave point: where nobody has told this rank to end, it does nothing."""
    if is_told():
        leave()


def is_told():
    """Whether this rank was told to end. Its launcher waits for some seconds."""
    return _until is not None


def leave():
    """Calls the callbacks of on_leave, and ends this process with 143."""
    _log.warning("told to end: this rank leaves")
    for callback in list(_callbacks):
        callback(max(0.0, _until - time.monotonic()))
    raise SystemExit(EXIT_TOLD)


def listen():
    """From now on SIGTERM is heard, and waits for a leave point. False where the program has its own handler, or this
    is not its main thread."""
    global _listening
    if _listening:
        return True
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return False
    signal.signal(signal.SIGTERM, _hear)
    _listening = True
    return True


def stop_listening():
    """No leave point follows: SIGTERM ends this process at once again, unless on_leave was called."""
    global _listening
    if _listening and not _callbacks and signal.getsignal(signal.SIGTERM) == _hear:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _listening = False


def _hear(*_):
    global _until
    if _until is None:
        _until = time.monotonic() + float(os.environ.get("FARANDOLE_TERM_GRACE_S") or 25)
