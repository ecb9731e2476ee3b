"""The command `farandole`: becomes the program that the wheel carries."""

import os
import sys


def program():
    """The path of the program."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "farandole")


def main():
    path = program()
    if not os.access(path, os.X_OK):
        sys.exit(f"farandole: {path} is missing: this wheel was built with FARANDOLE_PROGRAM=OFF; build it with ON")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
