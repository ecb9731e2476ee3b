"""Termination: a rank that receives SIGTERM (its pod is evicted, its job is cancelled) continues to a leave point.

    farandole.on_leave(lambda seconds: save("/checkpoints/state.npz"))

At the leave point the callbacks run and the process exits with 143. Leave points are `state.commit()` and
`state.check_host_updates()` of elastic programs, and `farandole.leave_if_requested()` in all other programs.
"""

import logging
import os
import signal
import threading
import time

_log = logging.getLogger("farandole")
EXIT_TERMINATED = 128 + signal.SIGTERM

_callbacks = []
_deadline = None  # monotonic time at which the launcher kills this process; None before SIGTERM
_handler_installed = False
_process = None  # that has installed it


def on_leave(callback):
    """Registers `callback(seconds)` for the first leave point after SIGTERM, and returns it.

    `seconds` is the time that is left until the launcher kills the process; FARANDOLE_TERM_GRACE_S is the time from
    the signal on. Callbacks run in the main thread, in the order of registration; then the process exits with 143.
    Other ranks may have exited already, so callbacks must not call collectives.

    TypeError if `callback` is not callable. A SIGTERM handler of the program stays in force, with a warning.
    """
    if not callable(callback):
        raise TypeError(f"on_leave takes a function, not {callback!r}")
    _callbacks.append(callback)
    if not install_handler():
        _log.warning("on_leave: the program has its own handler for SIGTERM, which stays in force")
    return callback


def leave_if_requested():
    """A leave point: runs the callbacks of on_leave and exits with 143 after SIGTERM. Does nothing before."""
    if is_requested():
        leave()


leave_if_told = leave_if_requested  # the former name


def is_requested():
    """Whether this rank has received SIGTERM. Its launcher waits for some seconds before it kills the process."""
    return _deadline is not None


def leave():
    """Runs the callbacks of on_leave and exits with 143. One that raises is logged, and the others run all the same."""
    _log.warning("SIGTERM was received: this rank leaves")
    for callback in list(_callbacks):
        try:
            callback(max(0.0, _deadline - time.monotonic()))
        except Exception:
            _log.exception("a callback of on_leave failed")
    raise SystemExit(EXIT_TERMINATED)


def install_handler():
    """Makes SIGTERM wait for a leave point.

    False if the program has its own handler, or if this is not its main thread.
    """
    global _handler_installed, _process
    if _handler_installed:
        return True
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return False
    signal.signal(signal.SIGTERM, _on_sigterm)
    _handler_installed, _process = True, os.getpid()
    return True


def _restore_in_child():
    """A forked child is no rank and has no leave point: SIGTERM ends it."""
    global _handler_installed, _deadline
    if _handler_installed and signal.getsignal(signal.SIGTERM) == _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _handler_installed, _deadline = False, None


os.register_at_fork(after_in_child=_restore_in_child)


def restore_handler():
    """Lets SIGTERM end this process at once again, because no leave point follows. on_leave keeps the handler."""
    global _handler_installed
    if _handler_installed and not _callbacks and signal.getsignal(signal.SIGTERM) == _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _handler_installed = False


def _on_sigterm(*_):
    global _deadline
    if os.getpid() != _process:  # a forked child that got the signal before _restore_in_child()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    elif _deadline is None:
        _deadline = time.monotonic() + float(os.environ.get("FARANDOLE_TERM_GRACE_S") or 25)
