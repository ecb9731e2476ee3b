"""Functions in background threads."""

import threading


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    """Starts `target(*args)` in a thread and returns the thread. `silent`: its exceptions are not printed."""
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {type(args).__name__}; for a single argument use (arg,)")

    def run():
        try:
            target(*args)
        except Exception:
            if not silent:
                raise

    thread = threading.Thread(target=run, name=name or getattr(target, "__name__", None), daemon=daemon)
    thread.start()
    return thread
