"""The stacks of all threads of this process, for `farandole where --stacks`."""

import sys
import threading
import traceback

MOST_FRAMES = 30  # of one thread, the innermost ones


def of_threads():
    """Returns the stacks as lines, that of the main thread first. Called in a thread of its own, which is left out."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    main = threading.main_thread().ident
    lines = []
    for ident in sorted(frames, key=lambda ident: (ident != main, names.get(ident, ""))):
        stack = traceback.extract_stack(frames[ident])
        lines.append(f"thread {names.get(ident, 'without a name')}:")
        if len(stack) > MOST_FRAMES:
            lines.append(f"  ... {len(stack) - MOST_FRAMES} more frames")
        for frame in stack[-MOST_FRAMES:]:
            code = f": {frame.line}" if frame.line else ""
            lines.append(f"  {frame.filename}:{frame.lineno} in {frame.name}{code}")
    return "\n".join(lines)
