"""The command `farandole`. It executes the program in the wheel; `farandole kubernetes` runs in Python."""

import os
import re
import shutil
import signal
import sys


def program():
    """The path of the program in the wheel."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "farandole")


def is_own_python(path):
    """Whether the Python at `path` is the one that runs this command."""
    return os.path.dirname(os.path.abspath(path)) == os.path.dirname(os.path.abspath(sys.executable))


def other_python(words):
    """The path of the Python that `farandole run` with these words starts, if it is not this one; None otherwise.

    Ranks import farandole from their own Python, which may have another version of it, or none.
    """
    if words[:1] != ["run"]:
        return None
    word = next((one for one in words[1:] if re.fullmatch(r"(.*/)?python(\d(\.\d+)?)?", one)), None)
    path = word and shutil.which(word)
    return None if not path or is_own_python(path) else path


def main():
    """The entry point of the command. Replaces this process by the program."""
    if sys.argv[1:2] in (["kubernetes"], ["k8s"]):
        from .integrations.kubernetes.__main__ import main as kubernetes

        sys.exit(kubernetes(sys.argv[2:]))
    path = program()
    if not os.access(path, os.X_OK):
        sys.exit(f"farandole: {path} is missing: this wheel was built with FARANDOLE_PROGRAM=OFF; build it with ON")
    other = other_python(sys.argv[1:])
    if other is not None and "--quiet" not in sys.argv:
        print(f"farandole run: ranks run {other}, but this command belongs to {sys.executable}; give that Python if "
              "ranks do not find farandole, or find another version of it", file=sys.stderr)  # fmt: skip
    if sys.argv[1:2] == ["doctor"]:
        from .doctor import packages

        os.environ["FARANDOLE_RUN_FINDINGS"] = packages.as_text(packages.findings())
    # Python ignores SIGPIPE, and the program would inherit that: `farandole config | head` would then fail.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
