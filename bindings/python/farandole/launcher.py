"""The command `farandole`. It executes the program in the wheel; `farandole kubernetes` runs in Python."""

import os
import signal
import sys


def program():
    """The path of the program in the wheel."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "farandole")


def main():
    """The entry point of the command. Replaces this process by the program."""
    if sys.argv[1:2] in (["kubernetes"], ["k8s"]):
        from .integrations.kubernetes.__main__ import main as kubernetes

        sys.exit(kubernetes(sys.argv[2:]))
    path = program()
    if not os.access(path, os.X_OK):
        sys.exit(f"farandole: {path} is missing: this wheel was built with FARANDOLE_PROGRAM=OFF; build it with ON")
    # Python ignores SIGPIPE, and the program would inherit that: `farandole config | head` would then fail.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
